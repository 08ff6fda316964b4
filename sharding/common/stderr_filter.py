"""Keeps noise of other libraries off standard error."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def drop_stderr_lines(noise: re.Pattern[bytes]) -> Iterator[None]:
    """Hold back standard error of this process during the body, then write it without the lines that match."""
    if sys.stderr is None:  # the program was started without it
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as lines:
        os.dup2(lines.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            lines.seek(0)
            with open(2, "wb", closefd=False) as stderr:
                stderr.writelines(line for line in lines if not noise.match(line))


def silence_pillow() -> None:
    """Silence Pillow's warnings for the rest of this process, for ringfeed's own programs only.

    They name no file, and concern odd EXIF data or large images; ringfeed reports unreadable images as errors.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
