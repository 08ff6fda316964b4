"""Copies values in memory into TensorFlow strings, by an operation compiled from string_views.c.

The operation runs without Python's lock. Making a `bytes` object of each value, for TensorFlow to copy, would hold the
lock for both copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec

import tensorflow as tf

__all__ = ["copy_views_operation"]

_MODULE = "._string_views"

Copy = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@functools.cache
def copy_views_operation() -> Copy | None:
    """The operation, or None if the package was installed without a C compiler.

    It takes addresses and lengths, int64 tensors of one shape, and returns a tf.string of that shape. The memory must
    not change until it has run.
    """
    library_spec = find_spec(_MODULE, __package__)
    if library_spec is None or library_spec.origin is None:
        return None
    try:
        library = tf.load_op_library(library_spec.origin)
    except (OSError, tf.errors.OpError):  # built for another machine's C library
        return None
    operation: Copy | None = getattr(library, "ringfeed_copy_views", None)
    return operation
