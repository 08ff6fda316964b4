"""TensorFlow's stateless random numbers in NumPy, for the batches that are made without TensorFlow.

They are those of `tf.random.split` and `tf.random.stateless_uniform` with ``alg="philox"``: Philox 4x32-10 of Salmon et
al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.3, keyed as TensorFlow's `GenerateKey` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_SCRAMBLE = (0x3EC8F720, 0x02461E29)  # the key by which `GenerateKey` spreads a seed
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def split(keys: Array, count: int) -> Array:
    """`tf.random.split` of each key: int64 [keys, count, 2] of int64 [keys, 2]."""
    words = _words(keys, 2 * 2 * count).reshape(len(keys), count, 2, 2)
    split_keys: Array = (words[..., 0] | words[..., 1] << _HALF).view(np.int64)
    return split_keys


def uniform(keys: Array, count: int, dtype: type[np.floating[Any]] = np.float32) -> Array:
    """`tf.random.stateless_uniform` of each key: float32 or float64 [keys, count] in [0, 1)."""
    if dtype is np.float32:
        bits = (_words(keys, count) & np.uint64(0x7FFFFF)) | np.uint64(0x3F800000)
        return bits.astype(np.uint32).view(np.float32) - np.float32(1)
    words = _words(keys, 2 * count).reshape(len(keys), count, 2)
    bits = ((words[..., 0] & np.uint64(0xFFFFF)) << _HALF) | words[..., 1] | np.uint64(0x3FF0000000000000)
    return bits.view(np.float64) - 1.0


def _words(seeds: Array, count: int) -> Array:
    """The first 32-bit words of each seed's sequence: uint64 [seeds, count]."""
    seeds = seeds.view(np.uint64)
    halves = [seeds[:, 0] & _LOW, seeds[:, 0] >> _HALF, seeds[:, 1] & _LOW, seeds[:, 1] >> _HALF]
    mixed = _philox(halves, [np.uint64(word) for word in _SCRAMBLE])
    blocks = -(-count // 4)
    numbers = np.broadcast_to(np.arange(blocks, dtype=np.uint64), (len(seeds), blocks))
    counters = [numbers, np.zeros_like(numbers), mixed[2][:, None], mixed[3][:, None]]
    result = _philox(counters, [mixed[0][:, None], mixed[1][:, None]])
    return np.stack(np.broadcast_arrays(*result), axis=-1).reshape(len(seeds), -1)[:, :count]


def _philox(counter: list[Array], key: list[Any]) -> list[Array]:
    """Four words of each counter, in the low halves of uint64."""
    a, b, c, d = counter
    for _ in range(_ROUNDS):
        first, second = a * np.uint64(_MULTIPLIERS[0]), c * np.uint64(_MULTIPLIERS[1])
        a, b, c, d = (second >> _HALF) ^ b ^ key[0], second & _LOW, (first >> _HALF) ^ d ^ key[1], first & _LOW
        key = [word + np.uint64(step) & _LOW for word, step in zip(key, _KEY_STEPS, strict=True)]
    return [a, b, c, d]
