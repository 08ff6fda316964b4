"""`Pad`: pads features of variable length to tensors, with lengths and a mask.

Tested in tests/pipeline/streams/test_length_buckets.py and tests/pipeline/test_loader_options.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringfeed.sharding.common.validation import boolean, integer, text
from ringfeed.sharding.errors import ConfigError

from .apply import GraphTransform, add_features


@dataclass(frozen=True, slots=True, kw_only=True)
class Pad(GraphTransform):
    """Pads a ragged feature, for `Loader.epoch(transform=...)`.

    Adds ``FEATURE_length``, int32 [batch], and ``FEATURE_mask``, bool [batch, length], true where there are values.

    Attributes:
        feature: name of a feature of variable length.
        length: length to pad to; default: the longest row in this rank's batch, so shapes differ between ranks.
        value: padding, of the feature's dtype; default: 0, False or the empty text.
        multiple_of: round the longest row's length up to a multiple of this, to compile for fewer shapes.
        truncate: whether to cut longer rows off at `length`; else they are an error when they come.

    Raises:
        ConfigError: a value breaks its rule.

    >>> Pad(feature="tokens", multiple_of=0)
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.ConfigError: multiple_of must be at least 1, and 1 where length is given, got 0
    """

    feature: str
    length: int | None = None
    value: Any = None
    multiple_of: int = 1
    truncate: bool = False

    def __post_init__(self) -> None:
        text("feature", self.feature)
        if self.length is not None:  # TensorFlow would mix int32 with NumPy's int64
            object.__setattr__(self, "length", integer("length", self.length, 1))
        object.__setattr__(self, "multiple_of", integer("multiple_of", self.multiple_of))
        boolean("truncate", self.truncate)
        if self.multiple_of < 1 or (self.multiple_of > 1 and self.length is not None):
            raise ConfigError(f"multiple_of must be at least 1, and 1 where length is given, got {self.multiple_of}")
        if self.truncate and self.length is None:
            raise ConfigError("truncate=True needs a length")

    def __call__(self, element: Mapping[str, Any]) -> dict[str, Any]:
        """The element with its feature padded.

        Raises:
            ConfigError: the element has no such feature of variable length, or already has one of the added names; or
                `value` is not of the feature's dtype.
        """
        import tensorflow as tf

        values = element.get(self.feature)
        if not isinstance(values, tf.RaggedTensor):
            raise ConfigError(f"the element has no feature {self.feature!r} of variable length")
        if self.value is not None and not _fits(self.value, values.dtype):
            raise ConfigError(
                f"value of Pad must be one {values.dtype.name}, as feature {self.feature!r} holds, got {self.value!r}"
            )
        lengths = tf.cast(values.row_lengths(), tf.int32)
        longest = tf.reduce_max(tf.concat([lengths, [0]], axis=0))
        width: Any = self.length
        if self.length is None:
            width = -(-longest // self.multiple_of) * self.multiple_of
        elif self.truncate:
            lengths = tf.minimum(lengths, self.length)
        else:
            message = f"a value of {self.feature} is longer than Pad(length={self.length}): raise it, or truncate=True"
            with tf.control_dependencies([tf.debugging.assert_less_equal(longest, self.length, message)]):
                lengths = tf.identity(lengths)
        inside = tf.sequence_mask(lengths, width)
        shape = [values.shape[0], self.length] if self.length is not None else tf.stack([-1, width])
        filler = None if self.value is None else _constant(self.value, values.dtype)
        padded = {**element, self.feature: values.to_tensor(filler, shape=shape)}
        return add_features(padded, {f"{self.feature}_length": lengths, f"{self.feature}_mask": inside})


def _fits(value: Any, dtype: Any) -> bool:
    """Whether a value is of a TensorFlow dtype; a float may be rounded."""
    given = np.asarray(value)
    if given.ndim:
        return False
    if dtype == "string" or given.dtype.kind not in "biuf":
        return dtype == "string" and given.dtype.kind in "SU"
    with np.errstate(invalid="ignore"):
        return dtype.is_floating or np.array_equal(given.astype(dtype.as_numpy_dtype), given)


def _constant(value: Any, dtype: Any) -> Any:
    """A constant of a dtype, without the detour over float32 or int64 that `tf.constant` takes for Python numbers."""
    import tensorflow as tf

    return tf.constant(value if dtype == "string" else np.asarray(value).astype(dtype.as_numpy_dtype), dtype)
