"""Time stamps inside a compiled step, from an operation compiled from clock.c."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.optimizers.keras_doors import Tensor

_MODULE = "._clock"

Clock = Callable[[], Tensor]


@functools.cache
def clock(*, deterministic: bool) -> Clock:
    """Return the operation that reads the clock of `time.monotonic`, float64 [], to the microsecond.

    Under TensorFlow's op determinism only the compiled one works; a ConfigError says that there is none.
    """
    library_spec = find_spec(_MODULE, __package__)
    if library_spec is not None and library_spec.origin is not None:
        try:
            compiled: Clock = tf.load_op_library(library_spec.origin).ringfeed_monotonic_clock
            return compiled
        except (OSError, AttributeError, tf.errors.OpError):  # built for another machine, or of another version
            pass
    if deterministic:
        raise ConfigError(
            "output.records and output.prometheus_port need a clock in the compiled step, and ringfeed was installed "
            "without a C compiler: install one and reinstall ringfeed, or set deterministic: false"
        )

    def own() -> Tensor:  # `tf.timestamp` jumps when the host's clock is set
        return tf.numpy_function(time.monotonic, [], tf.float64)

    return own


def timed(
    collective: Callable[[Sequence[Tensor]], list[Tensor]], tensors: Sequence[Tensor], read_clock: Clock | None
) -> tuple[list[Tensor], Tensor]:
    """Call a collective; return its result, and when its input was computed and when it had ended: float64 [2].

    To hold all tensors back until the clock is read would cost an operation each. So only the first is held back: it
    has to be one that the collective, and what follows it, wait for. Without a clock the times are float64 [0].
    """
    if read_clock is None:
        return collective(tensors), tf.zeros(0, tf.float64)
    ready, first = _stamped(tensors, read_clock)
    received = collective([first, *tensors[1:]])
    done, first = _stamped(received, read_clock)
    return [first, *received[1:]], tf.stack([ready, done])


def _stamped(tensors: Sequence[Tensor], read_clock: Clock) -> tuple[Tensor, Tensor]:
    """Return the time at which all tensors are computed, and the first of them, held back until then.

    A copy of the first tensor, which waits for the others, is brought to the host before the clock is read: a GPU's
    computation has then ended, and not only been started.
    """
    with tf.control_dependencies(tensors):
        last = tf.identity(tensors[0])
    with tf.device("CPU:0"):
        last = tf.identity(last)
        with tf.control_dependencies([last]):
            now = read_clock()
    now.set_shape([])
    with tf.control_dependencies([now]):
        return now, tf.identity(tensors[0])
