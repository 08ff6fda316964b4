"""Arrays as columns: which of a file's arrays make records together, and NumPy's types as features and Arrow columns.

Not here: any file format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...compute.batches import BATCH_BYTES, BATCH_ROWS
from ...errors import ConfigError, SourceError
from ...messages import did_you_mean, listed
from ...schema import Feature, in_lists

__all__ = [
    "Chosen", "Leaf", "batch_rows", "choose", "fixed_feature", "leaves_of", "no_feature", "part_bounds", "to_arrow",
]  # fmt: skip

_PART_ROWS = 1 << 18
_PART_BYTES = 256 << 20
_NAMES_SHOWN = 12
_TIMES = {("M", unit): pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")}
_TIMES |= {("m", unit): pa.duration(unit) for unit in ("s", "ms", "us", "ns")}
_TIMES[("M", "D")] = pa.date32()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """An array that can be a column, or a field of a structured one.

    Attributes:
        name: of the column.
        holder: the array: a file, a member of an archive, or a dataset.
        keys: the names of the fields that lead to it in the array, the outermost first.
        dtype: of one element.
        shape: of one record's value.
        rows: of the array.
        problem: why it is no column, where that was found before its type was looked at.
    """

    name: str
    holder: str
    keys: tuple[str, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    rows: int
    problem: str = ""

    @property
    def row_bytes(self) -> int:
        """Of one record's value, as NumPy holds it."""
        return prod(self.shape) * self.dtype.itemsize

    def values(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Its own, of rows of the array."""
        for key in self.keys:
            array = array[key]
        return array


def leaves_of(name: str, holder: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[Leaf]:
    """The array itself, or each field of a structured one, named ``array/field``.

    >>> [leaf.name for leaf in leaves_of("a", "a", np.dtype([("x", "<f4"), ("p", [("q", "i1", (2,))])]), (9,))]
    ['a/x', 'a/p/q']
    """
    stack: list[tuple[str, tuple[str, ...], np.dtype[Any], tuple[int, ...]]] = [(name, (), dtype, shape[1:])]
    while stack:
        name, keys, dtype, record = stack.pop()
        if dtype.subdtype is not None:
            stack.append((name, keys, dtype.subdtype[0], (*record, *dtype.subdtype[1])))
        elif dtype.names is not None:
            prefix = f"{name}/" if name else ""
            stack += [(prefix + key, (*keys, key), dtype[key], record) for key in reversed(dtype.names)]
        else:
            yield Leaf(name=name, holder=holder, keys=keys, dtype=dtype, shape=record, rows=shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What of a file's arrays makes the records.

    Attributes:
        leaves: the columns' arrays, all of one number of rows.
        features: of the columns.
        left_out: the names of others that are no columns and not wanted, or of the groups that they are in.
    """

    leaves: tuple[Leaf, ...]
    features: tuple[Feature, ...]
    left_out: tuple[str, ...]


def choose(
    leaves: Sequence[Leaf],
    picks: Sequence[str],
    path: str,
    wanted: Callable[[str], bool],
    feature_of: Callable[[Leaf, str], Feature],
) -> Chosen:
    """The columns picked, without those that cannot be any and are not wanted.

    Args:
        leaves: all that there are.
        picks: their names, or those of the groups they are in; none: all. One group makes itself the root.
        path: of the file, for errors.
        wanted: whether a column is, by its name.
        feature_of: the feature of an array; raises a SourceError if it has none.

    Raises:
        SourceError: there is none, none of a name picked, one has no feature, or they differ in their number of rows.
        ConfigError: all that there is was not wanted.
    """
    left_out: dict[str, None] = {}
    found: list[tuple[Leaf, Feature]] = []
    picked = {leaf: _unwanted(leaf.name, wanted) for leaf in _picked(leaves, picks, path)}
    if all(picked.values()):
        raise ConfigError(f"{path}: no column is left; leave fewer out")
    needed = [leaf for leaf, outer in picked.items() if not (outer or leaf.problem)]
    _check_rows(needed, path)
    for leaf, outer in picked.items():
        if outer not in ("", leaf.name):
            left_out[outer] = None
            continue
        try:
            if leaf.problem:
                raise SourceError(f"{path}: {leaf.problem}{_or_leave_out(leaf.name)}")
            found.append((leaf, feature_of(leaf, path)))
        except SourceError:
            if not outer:
                raise
            left_out[outer] = None
    left_out |= dict.fromkeys(leaf.name for leaf, _ in found if leaf.rows != needed[0].rows)
    kept = [(leaf, feature) for leaf, feature in found if leaf.name not in left_out]
    return Chosen(leaves=tuple(leaf for leaf, _ in kept), features=tuple(f for _, f in kept), left_out=tuple(left_out))


def _unwanted(name: str, wanted: Callable[[str], bool]) -> str:
    """The outermost group that something is in, or itself, that is not wanted; empty: there is none."""
    ends = [place for place, letter in enumerate(name) if letter == "/" and place]
    return next((name[:end] for end in (*ends, len(name)) if not wanted(name[:end])), "")


def _or_leave_out(*names: str) -> str:
    return f", or leave {listed([repr(name) for name in names], 3)} out by the first --drop-columns or --select"


def _picked(leaves: Sequence[Leaf], picks: Sequence[str], path: str) -> list[Leaf]:
    for pick in picks:
        if not any(_within(leaf.name, pick) for leaf in leaves):
            hint = did_you_mean(pick, (leaf.name for leaf in leaves), f"there are: {_listed(leaves)}")
            raise SourceError(f"{path} holds no array {pick!r}; {hint}")
    chosen = [leaf for leaf in leaves if not picks or any(_within(leaf.name, pick) for pick in picks)]
    if not chosen:
        raise SourceError(f"{path} holds no array with a dimension of records")
    root = f"{picks[0]}/" if len(picks) == 1 else ""
    if root and all(leaf.name.startswith(root) for leaf in chosen):
        return [replace(leaf, name=leaf.name.removeprefix(root)) for leaf in chosen]
    return chosen


def _check_rows(leaves: Sequence[Leaf], path: str) -> None:
    rows = [leaf.rows for leaf in leaves]
    if len(set(rows)) > 1:
        common = [leaf for leaf in leaves if leaf.rows == max(rows, key=rows.count)]
        others = [leaf.name for leaf in leaves if leaf not in common]
        sizes = _listed(leaves, sizes=True)
        raise SourceError(
            f"{path}: the arrays differ in their first dimension, the number of records: {sizes}; "
            f"choose some of one length, such as {path}::{','.join(leaf.name for leaf in common[:3])}"
            f"{_or_leave_out(*others)}"
        )


def _within(name: str, pick: str) -> bool:
    return name == pick or name.startswith(f"{pick}/")


def _listed(leaves: Sequence[Leaf], *, sizes: bool = False) -> str:
    words = [f"{leaf.name or 'the array'} ({leaf.rows})" if sizes else leaf.name for leaf in leaves]
    return listed(words, _NAMES_SHOWN)


def fixed_feature(leaf: Leaf, path: str) -> Feature:
    """The feature that holds every value of an array of fixed-size elements.

    Raises:
        SourceError: its type or shape has none.
    """
    dtype, logical = leaf.dtype, ""
    time = _TIMES.get((dtype.kind, np.datetime_data(dtype)[0])) if dtype.kind in "mM" else None
    if time is not None and np.datetime_data(dtype)[1] == 1:
        name, logical = ("int32" if time == pa.date32() else "int64"), str(time)
    elif dtype.kind in "SU" and dtype.itemsize:
        name = "string"
    elif dtype.kind == "V" and dtype.names is None and dtype.itemsize:
        name = "binary"
    elif dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8):
        name = dtype.name
    else:
        raise no_feature(
            leaf, path, "Python objects (pickle), which are never loaded" if dtype.hasobject else f"{dtype} values"
        )
    if 0 in leaf.shape:
        raise SourceError(
            f"{path}: the array {leaf.name!r} has records of shape {leaf.shape}, which hold nothing; choose others "
            f"with ::NAME,...{_or_leave_out(leaf.name)}"
        )
    return Feature(name=leaf.name, dtype=name, shape=leaf.shape, logical=logical)


def no_feature(leaf: Leaf, path: str, what: str) -> SourceError:
    """The error that an array cannot be a column for what it holds."""
    return SourceError(
        f"{path}: {f'the array {leaf.name!r}' if leaf.name else 'the array'} holds {what}; "
        f"store it as numbers, strings or bytes, choose others with ::NAME,...{_or_leave_out(leaf.name)}"
    )


def to_arrow(
    values: npt.NDArray[Any], feature: Feature, path: str, first_record: int, lengths: Sequence[int] | None = None
) -> pa.Array:
    """Rows of an array as a column of the feature's Arrow type.

    Args:
        values: [rows, *shape], in any byte order and memory layout; of lists their elements, one after the other.
        feature: as `fixed_feature` gave it, or of lists.
        path: of the file, for errors.
        first_record: number of the first row in it, for errors.
        lengths: of the lists.

    Raises:
        SourceError: text that is not UTF-8, a bool that is neither 0 nor 1, or a day beyond 32 bits.
    """

    def told(element: int) -> str:
        record = element // (feature.elements or 1)
        if lengths is not None:
            record = int(np.searchsorted(np.cumsum(lengths), element, side="right"))
        return f"{path}: record {first_record + record} (from 0) of {feature.name!r}"

    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype.kind in "SUVO":
        column = _text_column(flat.tolist(), feature, told)
    else:
        flat = flat.astype(flat.dtype.newbyteorder("="), copy=False)
        _check_held(flat, feature, told)
        column = pa.array(flat)
        column = column.view(feature.primitive) if feature.logical else column.cast(feature.primitive)
    if lengths is not None:
        return in_lists(column, lengths, None)
    return column if feature.shape == () else pa.FixedSizeListArray.from_arrays(column, type=feature.arrow_type)


def _check_held(flat: npt.NDArray[Any], feature: Feature, told: Callable[[int], str]) -> None:
    """Refuse days that date32 does not hold, and that Arrow would cut to it; and bools that are no truth."""
    if feature.dtype == "bool" and (odd := np.flatnonzero(flat.view(np.uint8) > 1)).size:
        raise SourceError(
            f"{told(int(odd[0]))} is {flat.view(np.uint8)[odd[0]]}, which is neither false (0) nor true (1); mend it, "
            "or store integers"
        )
    if feature.logical == str(_TIMES["M", "D"]):
        numbers, bounds = flat.view(np.int64), np.iinfo(np.int32)
        far = np.flatnonzero(~np.isnat(flat) & ((numbers < bounds.min) | (numbers > bounds.max)))
        if far.size:
            raise SourceError(
                f"{told(int(far[0]))} is the day {numbers[far[0]]} from 1970-01-01 on, "
                "which takes more than 32 bits; mend it, or store seconds"
            )


def _text_column(values: Sequence[str | bytes], feature: Feature, told: Callable[[int], str]) -> pa.Array:
    """Texts or bytes."""
    try:
        return pa.array(values, feature.primitive)
    except (UnicodeError, pa.ArrowException) as error:
        for i, value in enumerate(values):
            try:
                value.decode() if isinstance(value, bytes) else value.encode()
            except UnicodeError:
                raise SourceError(f"{told(i)} is not UTF-8; convert it first, or store it as opaque bytes") from error
        raise


def batch_rows(row_bytes: float) -> int:
    """Rows of a batch, by the bytes of one."""
    return int(min(BATCH_ROWS, max(1, BATCH_BYTES // max(1, row_bytes))))


def part_bounds(rows: int, row_bytes: float, align: int = 1) -> list[tuple[int, int]]:
    """Half-open ranges of rows, one a part, which start at multiples of `align`.

    >>> part_bounds(600_000, 4)
    [(0, 262144), (262144, 524288), (524288, 600000)]
    """
    size = int(min(_PART_ROWS, max(1, _PART_BYTES // max(1, row_bytes))))
    size = -(-size // align) * align
    return [(start, min(rows, start + size)) for start in range(0, rows, size)]
