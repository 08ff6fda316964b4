"""Values that lie in memory, copied into TensorFlow's strings by an operation of its own, compiled from string_views.c.

It holds no lock of Python's. To make `bytes` of each value and have TensorFlow copy that holds the lock for two copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from ...sharding.compute.kernels import INLINE_AT, INLINE_BYTES, VIEW
from ..decode.columns import views_of

__all__ = ["copy_views_operation", "locate_views"]

_MODULE = "._string_views"

Copy = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Int64 = npt.NDArray[np.int64]


@functools.cache
def copy_views_operation() -> Copy | None:
    """The operation; None where the package was installed without a C compiler.

    It takes addresses and lengths, int64 tensors of one shape, and gives a tf.string of that shape. What lies there has
    to stay until it has run.
    """
    found = find_spec(_MODULE, __package__)
    if found is None or found.origin is None:
        return None
    try:
        library = tf.load_op_library(found.origin)
    except (OSError, tf.errors.OpError):  # of another machine's C library
        return None
    operation: Copy | None = getattr(library, "ringfeed_copy_views", None)
    return operation


def locate_views(values: Any, *, before: int = 0, after: int = 0) -> tuple[Int64, Int64]:
    """Address and length of each value of an Arrow binary view, but for so many bytes at both ends of each."""
    _, views, *data = values.buffers()
    cells = views_of(values)
    bases = np.array([buffer.address for buffer in data], np.int64)
    lengths = cells["length"].astype(np.int64)
    inline = views.address + VIEW.itemsize * np.arange(values.offset, values.offset + len(values)) + INLINE_AT
    short = lengths <= INLINE_BYTES
    addresses = np.where(short, inline, 0)
    addresses[~short] = bases[cells["buffer"][~short]] + cells["offset"][~short]
    return addresses + before, lengths - (before + after)
