"""The program of every flex template; the launcher wants it as a file (see `pipelines.launch`)."""

import sys

from pipelines.launch import main

if __name__ == "__main__":
    sys.exit(main())
