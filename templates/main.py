"""The program of every flex template, a file for the launcher; see `timebeam.pipelines.deploy.launch`."""

import sys

from timebeam.pipelines.deploy.launch import main

if __name__ == "__main__":
    sys.exit(main())
