"""`python -m isthmus` is `isthmus`."""

import sys

from isthmus.cli import main

if __name__ == "__main__":
    sys.exit(main())
