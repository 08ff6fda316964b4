"""TensorFlow without its chatter on standard error, for the command line."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["quiet_tensorflow"]

_NOISE = re.compile(r"(I\d{4} |WARNING: All log messages before absl|To enable the following instructions)")


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Hold back what TensorFlow's C++ code says while it is imported, unless it is a warning or worse.

    TensorFlow 2.21 writes two information lines before it reads TF_CPP_MIN_LOG_LEVEL. A user who sets that variable
    to 0 sees everything.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
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
            _replay(held)


def _replay(held: Any) -> None:
    lines = held.read().decode(errors="replace").splitlines(keepends=True)
    sys.stderr.write("".join(line for line in lines if not _NOISE.match(line)))
