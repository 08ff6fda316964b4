"""Copies values in memory into TensorFlow strings, by an operation compiled from string_views.c.

The operation runs without Python's lock. Making a `bytes` object of each value, for TensorFlow to copy, would hold the
lock for both copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from ringfeed.pipeline.decode.columns import views_of
from ringfeed.sharding.compute.kernels import INLINE_AT, INLINE_BYTES, VIEW

__all__ = ["copy_views_operation", "locate_views"]

_MODULE = "._string_views"

Copy = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Int64 = npt.NDArray[np.int64]


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


def locate_views(values: Any, *, before: int = 0, after: int = 0) -> tuple[Int64, Int64]:
    """Address and length of each value of an Arrow binary view array, without its first and last bytes.

    Args:
        values: the array.
        before: bytes to skip at the start of each value.
        after: bytes to leave out at its end.
    """
    _, views, *data = values.buffers()
    cells = views_of(values)
    bases = np.array([buffer.address for buffer in data], np.int64)
    lengths = cells["length"].astype(np.int64)
    inline = views.address + VIEW.itemsize * np.arange(values.offset, values.offset + len(values)) + INLINE_AT
    short = lengths <= INLINE_BYTES
    addresses = np.where(short, inline, 0)
    addresses[~short] = bases[cells["buffer"][~short]] + cells["offset"][~short]
    return addresses + before, lengths - (before + after)
