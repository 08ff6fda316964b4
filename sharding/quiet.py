"""Standard error without lines of other libraries' C++ code that say nothing to a user."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_lines"]


@contextmanager
def without_lines(noise: re.Pattern[bytes]) -> Iterator[None]:
    """Hold back what this process writes to standard error, and write it after the body, but for lines that match."""
    if sys.stderr is None:  # closed when the program began
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            with open(2, "wb", closefd=False) as stderr:
                stderr.writelines(line for line in held if not noise.match(line))
