"""Randomness as pure functions of a key: permutations that need no state and no table.

Everything that ringfeed shuffles, it shuffles through here, so an order depends on its key alone and on no
library's random stream (NumPy promises no stable `Generator` streams between versions).
"""

from __future__ import annotations

from math import isqrt

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = ["derive_key", "mix64", "permute", "shuffled", "shuffled_by_group"]

_ROUNDS = 4
_TABLE_SIZE = 4096  # below it a Feistel network has too few states to mix well, and a table costs nothing
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def derive_key(*parts: int | str) -> int:
    """Hash a path of names and numbers, such as ``(seed, "epoch", 3)``, to a 64-bit key.

    >>> derive_key(7, "epoch", 3) != derive_key(7, "epoch", 4)
    True
    >>> derive_key("a", "b") != derive_key("ab")
    True
    """
    return xxhash.xxh3_64_intdigest("\x1f".join(f"{type(p).__name__}:{p}" for p in parts).encode())


def mix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble uint64 values one-to-one: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    z = values * _GOLDEN
    shifted = np.empty_like(z)  # one array for all steps: to map fresh pages costs more than the arithmetic
    z ^= np.right_shift(z, np.uint64(30), out=shifted)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    return z


def permute(key: int, size: int, indices: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Where a keyed pseudo-random permutation of ``[0, size)`` sends each of `indices`.

    A generalised Feistel network over Z_a x Z_b with a*b >= size, with cycle walking (Black and Rogaway,
    "Ciphers with arbitrary finite domains", CT-RSA 2002). O(len(indices)) in time and memory, whatever `size` is.

    Raises:
        ValueError: an index is outside ``[0, size)``.

    >>> sorted(permute(1, 10, np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    values = np.asarray(indices).astype(np.uint64)
    if values.size and int(values.max()) >= size:
        raise ValueError(f"indices must lie in [0, {size}), got {int(np.asarray(indices).max())}")
    if size <= _TABLE_SIZE:
        return shuffled(key, size)[values.astype(np.int64)]
    result = _feistel(key, size, values)
    outside = np.flatnonzero(result >= np.uint64(size))
    while outside.size:
        walked = _feistel(key, size, result[outside])
        result[outside] = walked
        outside = outside[walked >= np.uint64(size)]
    return result.astype(np.int64)


def _feistel(key: int, size: int, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    a = isqrt(size - 1) + 1
    b = -(-size // a)
    left, right = np.divmod(values, np.uint64(b))  # left in Z_a, right in Z_b
    for round_ in range(_ROUNDS):
        salt = np.uint64(derive_key(key, round_))
        if round_ % 2:
            right = _add(right, mix64(left ^ salt), b)
        else:
            left = _add(left, mix64(right ^ salt), a)
    return left * np.uint64(b) + right


def _add(half: npt.NDArray[np.uint64], noise: npt.NDArray[np.uint64], modulus: int) -> npt.NDArray[np.uint64]:
    """(half + a number in [0, modulus) drawn from the upper bits of noise) mod modulus; modulus < 2**32."""
    total: npt.NDArray[np.uint64] = half + ((noise >> np.uint64(32)) * np.uint64(modulus) >> np.uint64(32))
    total -= np.uint64(modulus) * (total >= np.uint64(modulus)).astype(np.uint64)
    return total


def shuffled(key: int, size: int) -> npt.NDArray[np.int64]:
    """A keyed pseudo-random permutation of ``arange(size)``, as a table of int64 [size].

    Sorts noise with the number in the lowest bits: no two values tie, so any sorting algorithm gives the same order.
    """
    noise, mask = _noise_and_places(key, size, 0)
    noise.sort()
    noise &= mask
    return noise.view(np.int64)


def shuffled_by_group(
    key: int, groups: npt.NDArray[np.int32], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The places of an array of numbers from 0, group after group, each in keyed random order.

    As `shuffled`, with the group in the highest bits: one sort does both.

    Args:
        key: of the order.
        groups: in ``[0, count)``, [n].
        count: of groups.

    Returns:
        The places, int64 [n]; and where each group begins among them, and the last ends, int64 [count + 1].

    >>> groups = np.array([1, 0, 1, 0, 1], np.int32)
    >>> places, bounds = shuffled_by_group(7, groups, 3)
    >>> groups[places].tolist(), bounds.tolist()
    ([0, 0, 1, 1, 1], [0, 2, 5, 5])
    """
    bits = max(count - 1, 1).bit_length()
    shift = np.uint64(64 - bits)
    noise, mask = _noise_and_places(key, len(groups), bits)
    highest = groups.astype(np.uint64)
    highest <<= shift
    noise |= highest
    noise.sort()
    begins = np.searchsorted(noise, np.arange(count, dtype=np.uint64) << shift)
    noise &= mask
    return noise.view(np.int64), np.append(begins, len(groups))


def _noise_and_places(key: int, size: int, free: int) -> tuple[npt.NDArray[np.uint64], np.uint64]:
    """Noise, uint64 [size]: the `free` highest bits are 0, and the lowest hold the place; and the mask of these."""
    low = np.uint64(max(size - 1, 1).bit_length())
    places = np.arange(size, dtype=np.uint64)
    noise = mix64(places ^ np.uint64(derive_key(key)))
    noise >>= np.uint64(free) + low
    noise <<= low
    noise |= places
    return noise, (np.uint64(1) << low) - np.uint64(1)
