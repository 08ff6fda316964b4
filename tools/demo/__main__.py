"""`python -m ringfeed.tools.demo`.

Tested in tests/tools/demo/test_run.py.
"""

import sys

from .run import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
