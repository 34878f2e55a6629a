"""The program of each flex template, for the launcher; see `timebeam.pipelines.deploy.templates`."""

import sys

from timebeam.pipelines.deploy.templates import launch

if __name__ == "__main__":
    sys.exit(launch())
