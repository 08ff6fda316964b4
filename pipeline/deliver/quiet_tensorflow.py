"""Imports TensorFlow for the command line: without its start-up messages, and without packages that it only offers."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ringfeed.sharding.common.stderr_filter import drop_stderr_lines

__all__ = ["hidden_packages", "quiet_tensorflow", "uncollected_imports"]

_NOISE = re.compile(rb"(I\d{4} |WARNING: All log messages before absl|To enable the following instructions)")

# TensorFlow 2.21 and Keras 3.15 import them if they are installed, for estimators of scikit-learn, galleries of images,
# notebooks and conversions: with all of them, over a third of the CPU time of `import tensorflow` (2026-11-27).
_OFFERED = ("IPython", "jax", "matplotlib", "scipy", "sklearn")


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


def _import_tensorflow() -> None:
    is_backend = os.environ.setdefault("KERAS_BACKEND", "tensorflow") == "tensorflow"
    with hidden_packages(_OFFERED if is_backend else ()), uncollected_imports():
        import tensorflow  # noqa: F401  # and Keras with it
    logging.getLogger("tensorflow").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line is worth showing: TensorFlow warns of each column whose name is not one of its own kind."""
    return "is not a valid node name" not in record.getMessage()


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Collect no garbage in the body, and never look again at what it leaves: modules, a million objects.

    Collections took a quarter of the CPU time of `import tensorflow` (2026-11-27).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class _Hiding:
    """A finder for `sys.meta_path` that refuses packages to one thread."""

    def __init__(self, names: Collection[str]) -> None:
        self._names, self._thread = frozenset(names), threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing, or refuse."""
        if name in self._names and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def hidden_packages(names: Collection[str]) -> Iterator[None]:
    """Let imports of packages fail in this thread during the body, unless they are imported already.

    >>> with hidden_packages(["this"]):
    ...     import this
    Traceback (most recent call last):
    ModuleNotFoundError: No module named 'this'
    """
    hiding = _Hiding(names)
    sys.meta_path.insert(0, hiding)
    try:
        yield
    finally:
        sys.meta_path.remove(hiding)
