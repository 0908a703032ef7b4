"""Runs the command line as `python -m kvfuzz.cli`."""

import sys

from kvfuzz.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
