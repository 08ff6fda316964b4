"""Imports TensorFlow without its start-up messages, for commands and for programs that import from ringfeed.

Tested in tests/pipeline/deliver/test_quiet_tensorflow.py.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from lazy_loader import attach_stub

from ringfeed.sharding.common.own_process import is_own_process
from ringfeed.sharding.common.stderr_filter import drop_stderr_lines

_NOISE = re.compile(rb"(I\d{4} |WARNING: All log messages before absl|To enable the following instructions)")


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Import TensorFlow and Keras, and suppress what C++ code logs below a warning; in the body, too.

    TensorFlow 2.21 writes two lines before it reads TF_CPP_MIN_LOG_LEVEL. A user who sets that variable to 0 sees
    everything. Keras' backend is TensorFlow, unless KERAS_BACKEND names another.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
        _import_tensorflow()
        yield
    else:
        with drop_stderr_lines(_NOISE):
            _import_tensorflow()
            yield


def attach_quietly(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Do as `lazy_loader.attach_stub`, but suppress what TensorFlow logs while a name's module imports it, no longer.

    The environment stays as it is: TensorFlow would go on to hide what a user's own program makes it log.
    """
    load, names, public = attach_stub(package, file)

    def load_quietly(name: str) -> Any:
        is_shown = "tensorflow" in sys.modules or os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
        with nullcontext() if is_shown else drop_stderr_lines(_NOISE):
            return load(name)

    return load_quietly, names, public


def _import_tensorflow() -> None:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if "tensorflow" not in sys.modules:
        with uncollected_imports():
            import tensorflow  # noqa: F401  # and Keras with it
    logging.getLogger("tensorflow").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line is worth showing: TensorFlow warns of each column whose name is not one of its own kind."""
    return "is not a valid node name" not in record.getMessage()


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Collect no garbage in the body: collections took a quarter of the CPU time of `import tensorflow`.

    A process of our own never looks again at what the body leaves, a million objects: the first collections after it
    took a tenth of the CPU time of a short `ringfeed train`. Other processes may hold garbage that must not stay.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_own_process():
            gc.freeze()
        if was_enabled:
            gc.enable()
