"""The program of every flex template, a file for the launcher; see `timebeam.pipelines.deploy.jobs`."""

import sys

from timebeam.pipelines.deploy.jobs import main

if __name__ == "__main__":
    sys.exit(main())
