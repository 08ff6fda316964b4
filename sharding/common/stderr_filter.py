"""Standard error without what other libraries say there that tells a user nothing."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_pillow", "without_lines"]


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


def quiet_pillow() -> None:
    """Let Pillow warn of nothing for the rest of this process, which is a program's of ours.

    Its warnings name no file: of odd EXIF, or that an image is large. What an image cannot be is told as an error.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
