"""`python -m timebeam`: the same as the console script `timebeam`."""

import sys

from timebeam.pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main())
