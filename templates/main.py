"""The program of each flex template, for the launcher; see `timebeam.pipelines.deploy.deployed_jobs`."""

import sys

from timebeam.pipelines.deploy.deployed_jobs import main

if __name__ == "__main__":
    sys.exit(main())
