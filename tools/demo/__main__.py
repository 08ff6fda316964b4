"""`python -m ringfeed.tools.demo`."""

import sys

from .run import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
