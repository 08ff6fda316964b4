"""Keeps TensorFlow's start-up messages off standard error, for the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from ...sharding.common.stderr_filter import drop_stderr_lines

__all__ = ["quiet_tensorflow"]

_NOISE = re.compile(rb"(I\d{4} |WARNING: All log messages before absl|To enable the following instructions)")


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Suppress what TensorFlow's C++ code logs below a warning while it is imported in the body.

    TensorFlow 2.21 writes two lines before it reads TF_CPP_MIN_LOG_LEVEL. A user who sets that variable to 0 sees
    everything.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
        yield
    else:
        with drop_stderr_lines(_NOISE):
            yield
