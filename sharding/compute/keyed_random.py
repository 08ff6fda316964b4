"""Randomness as pure functions of a key: hashes and permutations without state.

All shuffling in ringfeed goes through this module, so that an order depends on its key alone and on no library's
random stream (NumPy's `Generator` streams may change between versions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np
import xxhash

from . import kernels
from .arrays import Int32, Int64, Integers, UInt64

_ROUNDS = 4
_TABLE_SIZE = 4096  # up to this size a table is cheap, and a Feistel network has too few states to mix well
_TABLES_SIZE = 1 << 20  # entries of the tables made at a time
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def derive_key(*parts: int | np.integer | str) -> int:
    """Hash a path of names and numbers, such as ``(seed, "epoch", 3)``, to a 64-bit key.

    >>> derive_key(7, "epoch", 3) != derive_key(7, "epoch", 4)
    True
    >>> derive_key("a", "b") != derive_key("ab")
    True
    >>> derive_key(np.int64(7)) == derive_key(7) != derive_key("7")
    True
    """
    named = [f"{'int' if isinstance(part, np.integer) else type(part).__name__}:{part}" for part in parts]
    return xxhash.xxh3_64_intdigest("\x1f".join(named).encode())


def mix64(values: UInt64) -> UInt64:
    """Mix uint64 values one-to-one with the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    z = values * _GOLDEN
    shifted = np.empty_like(z)  # one array for all steps: mapping fresh pages costs more than the arithmetic
    z ^= np.right_shift(z, np.uint64(30), out=shifted)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    return z


def permute(key: int, size: int, indices: Integers) -> Int64:
    """Map each of `indices` by a keyed pseudo-random permutation of ``[0, size)``.

    A generalised Feistel network over Z_a x Z_b with a*b >= size, with cycle walking (Black and Rogaway,
    "Ciphers with arbitrary finite domains", CT-RSA 2002). Time and memory are O(len(indices)), whatever `size` is.

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
    return _walk(_Feistel.of(key, size), np.array(size, np.uint64), values)


def permute_each(keys: Sequence[int], sizes: Int64, groups: Integers, indices: Integers) -> Int64:
    """`permute` with many keys: index i of group g is mapped by the permutation of ``[0, sizes[g])`` under ``keys[g]``.

    It gives the numbers that `permute` gives for each group, and is faster for groups of up to some hundred indices:
    five times for 65.

    Raises:
        ValueError: an index is outside the range of its group.

    >>> permute_each([1, 2], np.array([9, 9]), np.array([0, 0, 1]), np.array([4, 5, 4])).tolist() == [
    ...     *permute(1, 9, np.array([4, 5])), *permute(2, 9, np.array([4]))]
    True
    """
    own_sizes = sizes[groups]
    if np.any((indices < 0) | (indices >= own_sizes)):
        raise ValueError("indices must lie in [0, size) of their groups")
    result = np.empty(len(indices), np.int64)
    small = own_sizes <= _TABLE_SIZE
    places = np.flatnonzero(small)
    result[places] = _look_up(keys, sizes, groups[places], indices[places])
    places = np.flatnonzero(~small)
    if places.size:
        permutation = _Feistel.of_groups(keys, sizes, groups[places])
        result[places] = _walk(permutation, own_sizes[places].astype(np.uint64), indices[places].astype(np.uint64))
    return result


def _look_up(keys: Sequence[int], sizes: Int64, groups: Integers, indices: Integers) -> Int64:
    """`permute_each` for groups small enough for a table as `shuffled` makes it, some tables at a time."""
    used, position = np.unique(groups, return_inverse=True)
    bits = np.maximum(np.frexp((sizes[used] - 1).astype(np.float64))[1], 1)  # bits of the numbers in each table
    order = np.argsort(bits, kind="stable")  # tables of similar size side by side
    rank = np.empty(len(used), np.int64)
    rank[order] = np.arange(len(used))
    by_table = np.argsort(rank[position], kind="stable")
    ranks = rank[position][by_table]
    result = np.empty(len(indices), np.int64)
    start = 0
    widths = bits[order]
    while start < len(used):
        width = int(widths[start])
        stop = min(int(np.searchsorted(widths, width, side="right")), start + (_TABLES_SIZE >> width))
        own = used[order[start:stop]]
        tables = _tables([keys[group] for group in own.tolist()], sizes[own], width)
        rows = slice(*np.searchsorted(ranks, np.array([start, stop])).tolist())
        places = by_table[rows]
        result[places] = tables[ranks[rows] - start, indices[places]]
        start = stop
    return result


def _tables(keys: Sequence[int], sizes: Int64, bits: int) -> Int64:
    """``shuffled(key, size)`` of each key as a row of a matrix; cells beyond `size` are meaningless."""
    low = np.uint64(bits)
    numbers = np.arange(1 << bits, dtype=np.uint64)
    salts = np.array([derive_key(key) for key in keys], np.uint64)
    noise = mix64(numbers ^ salts[:, None]) >> low << low | numbers
    noise[numbers >= sizes.astype(np.uint64)[:, None]] = np.iinfo(np.uint64).max
    noise.sort(axis=1)
    return (noise & ((np.uint64(1) << low) - np.uint64(1))).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Feistel:
    """A Feistel network over Z_a x Z_b for each value, or one for all values: then a and b are scalars."""

    a: UInt64
    b: UInt64
    salts: UInt64  # [rounds, values], or [rounds]

    @classmethod
    def of(cls, key: int, size: int) -> _Feistel:
        return cls(*(array[..., 0] for array in cls._numbers([key], [size])))

    @classmethod
    def of_groups(cls, keys: Sequence[int], sizes: Int64, groups: Integers) -> _Feistel:
        used, position = np.unique(groups, return_inverse=True)
        numbers = cls._numbers([keys[group] for group in used.tolist()], sizes[used].tolist())
        return cls(*(array[..., position] for array in numbers))

    @staticmethod
    def _numbers(keys: Sequence[int], sizes: Sequence[int]) -> Iterator[UInt64]:
        a = [isqrt(size - 1) + 1 for size in sizes]
        yield np.array(a, np.uint64)
        yield np.array([-(-size // own) for own, size in zip(a, sizes, strict=True)], np.uint64)
        yield np.array([[derive_key(key, round_) for key in keys] for round_ in range(_ROUNDS)], np.uint64)

    def __getitem__(self, places: Int64) -> _Feistel:
        """The networks of some values."""
        return _Feistel(self.a[places], self.b[places], self.salts[:, places]) if self.a.ndim else self

    def __call__(self, values: UInt64) -> UInt64:
        left, right = np.divmod(values, self.b)  # left in Z_a, right in Z_b
        for round_ in range(_ROUNDS):
            if round_ % 2:
                right = _add(right, mix64(left ^ self.salts[round_]), self.b)
            else:
                left = _add(left, mix64(right ^ self.salts[round_]), self.a)
        result: UInt64 = left * self.b + right
        return result


def _walk(permutation: _Feistel, sizes: UInt64, values: UInt64) -> Int64:
    """Apply the permutation until each value is below its size again (cycle walking)."""
    result = permutation(values)
    outside = np.flatnonzero(result >= sizes)
    while outside.size:
        walked = permutation[outside](result[outside])
        result[outside] = walked
        outside = outside[walked >= (sizes[outside] if sizes.ndim else sizes)]
    return result.astype(np.int64)


def _add(half: UInt64, noise: UInt64, modulus: UInt64) -> UInt64:
    """(half + a number in [0, modulus) drawn from the upper bits of noise) mod modulus; modulus < 2**32."""
    total: UInt64 = half + ((noise >> np.uint64(32)) * modulus >> np.uint64(32))
    total -= modulus * (total >= modulus).astype(np.uint64)
    return total


def shuffled(key: int, size: int) -> Int64:
    """A keyed pseudo-random permutation of ``arange(size)``, int64 [size].

    Sorts noise with the number in the lowest bits: no two values tie, so that any sorting algorithm gives one order.
    """
    noise, mask = _sorted_noise(key, size)
    noise &= mask
    return noise.view(np.int64)


def shuffled_by_group(key: int, groups: Int32, count: int) -> tuple[Int64, Int64]:
    """The positions of an array, group after group, each group in keyed random order.

    Like `shuffled`, with the group in the highest bits, so that one sort does both.

    Args:
        groups: group of each position, in ``[0, count)``, [n].
        count: number of groups.

    Returns:
        The positions, int64 [n], and the boundaries of the groups among them, int64 [count + 1].

    >>> groups = np.array([1, 0, 1, 0, 1], np.int32)
    >>> places, bounds = shuffled_by_group(7, groups, 3)
    >>> groups[places].tolist(), bounds.tolist()
    ([0, 0, 1, 1, 1], [0, 2, 5, 5])
    """
    bits = max(count - 1, 1).bit_length()
    noise, mask = _sorted_noise(key, len(groups), bits, groups)
    begins = np.searchsorted(noise, np.arange(count, dtype=np.uint64) << np.uint64(64 - bits))
    noise &= mask
    return noise.view(np.int64), np.append(begins, len(groups))


def _sorted_noise(key: int, size: int, free: int = 0, groups: Int32 | None = None) -> tuple[UInt64, np.uint64]:
    """Sorted noise, uint64 [size]: the group in the `free` highest bits, the position in the lowest; and their mask."""
    low = max(size - 1, 1).bit_length()
    salt, mask = derive_key(key), np.uint64((1 << low) - 1)
    if kernels.are_compiled():
        return kernels.noise(salt, size, free, low, groups), mask
    places = np.arange(size, dtype=np.uint64)
    noise = mix64(places ^ np.uint64(salt))
    noise >>= np.uint64(free + low)
    noise <<= np.uint64(low)
    noise |= places
    if groups is not None:
        noise |= groups.astype(np.uint64) << np.uint64(64 - free)
    noise.sort()
    return noise, mask
