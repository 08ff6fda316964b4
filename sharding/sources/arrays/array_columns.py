"""Arrays as columns, for every format of array files: which arrays make records together, their features and values.

Tested in tests/sharding/sources/arrays/test_npy.py and tests/sharding/sources/arrays/test_hdf5.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute.batches import BATCH_BYTES, BATCH_ROWS
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import did_you_mean, listed
from ringfeed.sharding.schema import Feature, to_lists

_MOST_VALUES = (1 << 31) - 1
_PART_ROWS = 1 << 18
_PART_BYTES = 256 << 20
_NAMES_SHOWN = 12
_TIMES = {("M", unit): pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")}
_TIMES |= {("m", unit): pa.duration(unit) for unit in ("s", "ms", "us", "ns")}
_TIMES[("M", "D")] = pa.date32()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """An array, or a field of a structured array, that can be a column."""

    name: str
    holder: str  # name of the array: of a file, a member of an archive, or a dataset
    keys: tuple[str, ...]  # names of the fields that lead to it in a structured array, outermost first
    dtype: np.dtype[Any]  # type of one element
    shape: tuple[int, ...]  # shape of one record's value
    rows: int  # length of the array
    problem: str = ""  # why it cannot be a column, if that is known without its type; else empty

    @property
    def row_bytes(self) -> int:
        """The size of one record's value in NumPy."""
        return prod(self.shape) * self.dtype.itemsize

    def values(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the leaf's values of some rows of the array."""
        for key in self.keys:
            array = array[key]
        return array


def leaves_of(name: str, holder: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[Leaf]:
    """Yield the array itself, or each field of a structured array, named ``array/field``.

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
class ArraySelection:
    """The arrays of a file that make up the records."""

    leaves: tuple[Leaf, ...]  # arrays of the columns, all of the same length
    features: tuple[Feature, ...]
    left_out: tuple[str, ...]  # names of unwanted arrays that cannot be columns, or of the groups that contain them


def select_arrays(
    leaves: Sequence[Leaf],
    picks: Sequence[str],
    path: str,
    wanted: Callable[[str], bool],
    feature_of: Callable[[Leaf, str], Feature],
) -> ArraySelection:
    """Select arrays, without the unwanted ones that cannot be columns.

    Args:
        leaves: all arrays.
        picks: names of arrays or groups to select; none: all. The columns of a single group are named within it.
        path: path of the file, for errors.
        wanted: whether the build needs a column of this name.
        feature_of: returns the feature of an array; raises a SourceError if there is none.

    Raises:
        SourceError: there is no array, or none of a picked name; a wanted array has no feature, or another length.
        ConfigError: no array is wanted.
    """
    left_out: dict[str, None] = {}
    selected: list[tuple[Leaf, Feature]] = []
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
                raise SourceError(f"{path}: {leaf.problem}{_leave_out_hint(leaf.name)}")
            selected.append((leaf, feature_of(leaf, path)))
        except SourceError:
            if not outer:
                raise
            left_out[outer] = None
    left_out |= dict.fromkeys(leaf.name for leaf, _ in selected if leaf.rows != needed[0].rows)
    kept = [(leaf, feature) for leaf, feature in selected if leaf.name not in left_out]
    return ArraySelection(
        leaves=tuple(leaf for leaf, _ in kept), features=tuple(f for _, f in kept), left_out=tuple(left_out)
    )


def _unwanted(name: str, wanted: Callable[[str], bool]) -> str:
    """Return the outermost unwanted group around an array, or the array if it is unwanted, or an empty string."""
    ends = [place for place, letter in enumerate(name) if letter == "/" and place]
    return next((name[:end] for end in (*ends, len(name)) if not wanted(name[:end])), "")


def _leave_out_hint(*names: str) -> str:
    return f", or leave {listed([repr(name) for name in names], 3)} out by the first --drop-columns or --select"


def _picked(leaves: Sequence[Leaf], picks: Sequence[str], path: str) -> list[Leaf]:
    for pick in picks:
        if not any(_within(leaf.name, pick) for leaf in leaves):
            hint = did_you_mean(pick, (leaf.name for leaf in leaves), f"there are: {_listed(leaves)}")
            raise SourceError(f"{path} holds no array {pick!r}; {hint}")
    picked = [leaf for leaf in leaves if not picks or any(_within(leaf.name, pick) for pick in picks)]
    if not picked:
        raise SourceError(f"{path} holds no array with a dimension of records")
    root = f"{picks[0]}/" if len(picks) == 1 else ""
    if root and all(leaf.name.startswith(root) for leaf in picked):
        return [replace(leaf, name=leaf.name.removeprefix(root)) for leaf in picked]
    return picked


def _check_rows(leaves: Sequence[Leaf], path: str) -> None:
    rows = [leaf.rows for leaf in leaves]
    if len(set(rows)) > 1:
        common = [leaf for leaf in leaves if leaf.rows == max(rows, key=rows.count)]
        others = [leaf.name for leaf in leaves if leaf not in common]
        sizes = _listed(leaves, sizes=True)
        raise SourceError(
            f"{path}: the arrays differ in their first dimension, the number of records: {sizes}; "
            f"choose some of the same length, such as {path}::{','.join(leaf.name for leaf in common[:3])}"
            f"{_leave_out_hint(*others)}"
        )


def _within(name: str, pick: str) -> bool:
    return name == pick or name.startswith(f"{pick}/")


def _listed(leaves: Sequence[Leaf], *, sizes: bool = False) -> str:
    words = [f"{leaf.name or 'the array'} ({leaf.rows})" if sizes else leaf.name for leaf in leaves]
    return listed(words, _NAMES_SHOWN)


def fixed_feature(leaf: Leaf, path: str) -> Feature:
    """Return the feature that holds every value of an array of fixed-size elements.

    Raises:
        SourceError: no feature has its type or shape.
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
        raise unsupported_array(
            leaf, path, "Python objects (pickle), which are never loaded" if dtype.hasobject else f"{dtype} values"
        )
    if 0 in leaf.shape:
        raise SourceError(
            f"{path}: the array {leaf.name!r} has records of shape {leaf.shape}, which are empty; choose others "
            f"with ::NAME,...{_leave_out_hint(leaf.name)}"
        )
    if prod(leaf.shape) > _MOST_VALUES:
        raise SourceError(
            f"{path}: the array {leaf.name!r} has {prod(leaf.shape):,} values in each record, and a list of Arrow "
            f"holds {_MOST_VALUES:,}; its first dimension counts the records: save it with more of them"
        )
    return Feature(name=leaf.name, dtype=name, shape=leaf.shape, logical=logical)


def unsupported_array(leaf: Leaf, path: str, what: str) -> SourceError:
    """Return the error of an array that cannot be a column because of what it holds."""
    return SourceError(
        f"{path}: {f'the array {leaf.name!r}' if leaf.name else 'the array'} holds {what}; "
        f"store it as numbers, strings or bytes, choose others with ::NAME,...{_leave_out_hint(leaf.name)}"
    )


def to_arrow(
    values: npt.NDArray[Any], feature: Feature, path: str, first_record: int, lengths: Sequence[int] | None = None
) -> pa.Array:
    """Convert rows of an array to a column of the feature's Arrow type.

    Args:
        values: array [rows, *shape] in any byte order and memory layout; for lists, their concatenated elements.
        feature: result of `fixed_feature`, or a feature of lists.
        path: path of the file, for errors.
        first_record: number of the first row in the file, for errors.

    Raises:
        SourceError: text is not UTF-8, a bool is neither 0 nor 1, or a day takes more than 32 bits.
    """

    def place_of(element: int) -> str:
        record = element // (feature.elements or 1)
        if lengths is not None:
            record = int(np.searchsorted(np.cumsum(lengths), element, side="right"))
        return f"{path}: record {first_record + record} (from 0) of {feature.name!r}"

    flat = np.ascontiguousarray(values).reshape(-1)
    if flat.dtype.kind in "SUVO":
        column = _text_column(flat.tolist(), feature, place_of)
    else:
        flat = flat.astype(flat.dtype.newbyteorder("="), copy=False)
        _check_values(flat, feature, place_of)
        column = pa.array(flat)
        column = column.view(feature.primitive) if feature.logical else column.cast(feature.primitive)
    if lengths is not None:
        return to_lists(column, lengths, None)
    return column if feature.shape == () else pa.FixedSizeListArray.from_arrays(column, type=feature.arrow_type)


def _check_values(flat: npt.NDArray[Any], feature: Feature, place_of: Callable[[int], str]) -> None:
    """Refuse bools other than 0 and 1, and days that date32 cannot hold, which Arrow would truncate."""
    if feature.dtype == "bool" and (odd := np.flatnonzero(flat.view(np.uint8) > 1)).size:
        raise SourceError(
            f"{place_of(int(odd[0]))} is {flat.view(np.uint8)[odd[0]]}, which is neither false (0) nor true (1); fix "
            "it, or store integers"
        )
    if feature.logical == str(_TIMES["M", "D"]):
        numbers, bounds = flat.view(np.int64), np.iinfo(np.int32)
        far = np.flatnonzero(~np.isnat(flat) & ((numbers < bounds.min) | (numbers > bounds.max)))
        if far.size:
            raise SourceError(
                f"{place_of(int(far[0]))} is day {numbers[far[0]]} since 1970-01-01, "
                "which takes more than 32 bits; fix it, or store seconds"
            )


def _text_column(values: Sequence[str | bytes], feature: Feature, place_of: Callable[[int], str]) -> pa.Array:
    try:
        return pa.array(values, feature.primitive)
    except (UnicodeError, pa.ArrowException) as error:
        for i, value in enumerate(values):
            try:
                value.decode() if isinstance(value, bytes) else value.encode()
            except UnicodeError:
                raise SourceError(
                    f"{place_of(i)} is not UTF-8; convert it first, or store it as opaque bytes"
                ) from error
        raise


def batch_rows(row_bytes: float) -> int:
    """Return how many rows a batch takes, by the bytes of one."""
    return int(min(BATCH_ROWS, max(1, BATCH_BYTES // max(1, row_bytes))))


def part_bounds(rows: int, row_bytes: float, part_bytes: int | None = None, align: int = 1) -> list[tuple[int, int]]:
    """Return half-open ranges of rows, one a part of at most `part_bytes`, that start at multiples of `align`.

    >>> part_bounds(600_000, 4)
    [(0, 262144), (262144, 524288), (524288, 600000)]
    """
    size = int(min(_PART_ROWS, max(1, (part_bytes or _PART_BYTES) // max(1, row_bytes))))
    size = -(-size // align) * align
    return [(start, min(rows, start + size)) for start in range(0, rows, size)]


def differing_columns(url: str, given: Sequence[Feature], first: str, wanted: Sequence[Feature]) -> SourceError:
    """Return the error for a file whose columns differ from those of the first file."""
    ours, theirs = ({feature.name: feature for feature in features} for features in (given, wanted))
    lacking = next((name for name in theirs if name not in ours), None)
    extra = next((name for name in ours if name not in theirs), None)
    odd = next((name for name in theirs if name in ours and ours[name] != theirs[name]), None)
    if odd is not None:
        how = f"{odd!r} is {_described(ours[odd])} here and {_described(theirs[odd])} in {first}; write both alike"
    elif lacking is not None:
        how = f"it has no {lacking!r}, as {first} has"
    else:
        how = f"it has {extra!r}, which {first} lacks" if extra else f"they lie in other places than in {first}"
    return SourceError(
        f"{url}: its columns differ: {how}; or name files of one kind with a glob, or common columns with ::NAME,..."
    )


def _described(feature: Feature) -> str:
    return f"{feature.logical or feature.dtype}{list(feature.shape) if feature.shape else ''}"
