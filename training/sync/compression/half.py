"""Sixteen bits for each number on the wire: float16 or bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ringfeed.training.config.compression import FP16Config
from ringfeed.training.optimizers.keras_doors import Tensor
from ringfeed.training.sync.synchronizer import SyncRun

from .payload import from_bytes, to_bytes
from .two_stage import TwoStage


def build(run: SyncRun, options: FP16Config) -> TwoStage:
    dtype = tf.float16 if options.method == "fp16" else tf.bfloat16
    return TwoStage(run, Half(dtype=dtype), least_dimensions=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """The codec of `TwoStage`, which adds in float32, so that sums neither overflow nor are rounded."""

    dtype: Any  # `tf.float16` (11 significant bits, up to 65504) or `tf.bfloat16` (8 bits, the range of float32)
    multiple: int = 1

    def encode(self, rows: Tensor, counts: Tensor) -> Tensor:
        return to_bytes(tf.cast(rows, self.dtype))

    def decode(self, payloads: Tensor) -> Tensor:
        return tf.cast(from_bytes(payloads, self.dtype), tf.float32)
