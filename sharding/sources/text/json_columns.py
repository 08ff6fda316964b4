"""JSON lines to columns of known types: each value exactly, or its record is rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.batches import BATCH_BYTES, BATCH_ROWS
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, insert_nulls, to_lists
from ringfeed.sharding.sources.base import BadRecord, Reject

from .declared_types import cast_text
from .json_parse import Lines, Number, Tree, decode_lines, make_decoder, parse_fast

_DECODER = make_decoder(Number, Number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A feature, and where its values lie in an object."""

    path: tuple[str, ...]  # keys that lead to the value
    feature: Feature
    declared: bool = False  # whether the user declared the type, so that a value may not fit it

    @property
    def parsed_type(self) -> pa.DataType | None:
        """The type that Arrow's parser can read the column as; None: no type would be exact."""
        feature = self.feature
        if feature.dtype == "float16":
            return None
        kind = pa.string() if feature.logical or feature.dtype == "binary" else feature.primitive
        for _ in feature.shape:
            kind = pa.list_(kind)
        return kind


def set_type(tree: Tree, path: Sequence[str], kind: pa.DataType) -> None:
    """Set the type at a path of a tree."""
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = kind


def rows_at_once(columns: Sequence[Column]) -> int:
    """Return how many records to read at once, so that a batch stays small even if all values are missing."""
    width = sum(8 * (column.feature.elements or 1) for column in columns)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, width)))


def read_columns(path: str, lines: Lines, columns: Sequence[Column], reject: Reject, *, closed: bool) -> list[pa.Array]:
    """Read columns of some lines, without the rejected lines.

    Args:
        path: path or URL of the file.
        reject: called with each line that is not an object, or holds a value that does not fit its declared type.
        closed: whether to look at other keys, too: a line may be bad only there.

    Raises:
        SourceError: a value does not fit its inferred type: the file changed.
    """
    fast = _read_fast(lines, columns, closed=closed)
    return _read_slow(path, lines, columns, reject) if fast is None else fast


def _read_fast(lines: Lines, columns: Sequence[Column], *, closed: bool) -> list[pa.Array] | None:
    tree: Tree = {}
    for column in columns:
        kind = column.parsed_type
        if kind is None:
            return None
        set_type(tree, column.path, kind)
    table = parse_fast(lines, tree, closed=closed)
    if table is None:
        return None
    arrays = []
    batch = table.to_batches()[0]
    for column in columns:
        values = batch.column(column.path[0])
        for name in column.path[1:]:
            values = pc.struct_field(values, name)
        shaped = _fit(values, column.feature)
        if shaped is None:
            return None
        arrays.append(shaped)
    return arrays


def _fit(values: pa.Array, feature: Feature) -> pa.Array | None:
    """Return parsed values in the feature's type, or None where they need the slow path."""
    flat, valid = values, values.is_valid()
    for size in feature.shape:
        if size is not None and not pc.all(pc.equal(pc.list_value_length(flat), size), min_count=0).as_py():
            return None
        flat = flat.flatten()
        if len(feature.shape) > 1 and pa.types.is_list(flat.type) and flat.null_count:
            return None
    if feature.dtype == "float32" and pc.any(pc.is_inf(flat)).as_py():
        return None
    if feature.logical or feature.dtype == "binary":
        flat, bad = cast_text(flat, feature)
        if bad.any():
            return None
    if not feature.shape:
        return flat
    if feature.elements is None:
        mask = None if not values.null_count else pc.invert(valid)
        lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        return to_lists(flat, lengths, mask)
    return insert_nulls(pa.FixedSizeListArray.from_arrays(flat, feature.elements), valid)


class _Unfit(Exception):
    """A value does not fit its column's type."""


def _read_slow(path: str, lines: Lines, columns: Sequence[Column], reject: Reject) -> list[pa.Array]:
    numbers: list[int] = []
    values: list[list[Any]] = [[] for _ in columns]
    for number, record in decode_lines(path, lines, _DECODER, reject):
        numbers.append(number)
        for column, values_of_column in zip(columns, values, strict=True):
            values_of_column.append(_look_up(record, column.path))
    arrays: list[pa.Array] = []
    unfit: dict[int, str] = {}
    for column, values_of_column in zip(columns, values, strict=True):
        array, bad = _convert(values_of_column, column.feature)
        arrays.append(array)
        for row in np.flatnonzero(bad).tolist():
            kind = column.feature.logical or column.feature.dtype
            shape = f" of shape {column.feature.shape}" if column.feature.shape else ""
            reason = f"{column.feature.name!r}: {_show(values_of_column[row])} is no {kind}{shape}"
            if not column.declared:
                raise SourceError(
                    f"{path}: {lines.unit} {numbers[row]}: {reason}; the file changed while it was read; build again"
                )
            unfit.setdefault(row, reason)
    for row in sorted(unfit):
        reject(BadRecord(path=path, place=f"{lines.unit} {numbers[row]}", reason=unfit[row]))
    keep = np.ones(len(numbers), bool)
    keep[list(unfit)] = False
    return [array.filter(pa.array(keep)) for array in arrays] if unfit else arrays


def _show(value: Any) -> str:
    text = value if isinstance(value, Number) else repr(value)
    return text if len(text) <= 50 else text[:50] + "..."


def _look_up(record: Any, path: Sequence[str]) -> Any:
    """Return the value at a path; None: it is missing; ``{}``, which fits no type: a parent is not an object."""
    for name in path:
        if record is None:
            return None
        if not isinstance(record, dict):
            return {}
        record = record.get(name)
    return record


def _convert(values: list[Any], feature: Feature) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return a column, null where a value does not fit, and a mask of these."""
    rows = len(values)
    bad, valid = np.zeros(rows, bool), np.zeros(rows, bool)
    lengths = np.zeros(rows, np.int64)
    texts: list[str | None] = []
    for row, value in enumerate(values):
        if value is None and feature.shape:
            continue
        try:
            elements = _flatten(value, feature.shape)
        except _Unfit:
            bad[row] = True
            elements = [] if feature.shape else [None]
        else:
            valid[row] = True
        lengths[row] = len(elements)
        texts += elements
    flat, failed = cast_text(pa.array(texts, pa.string()), feature)
    owners = np.repeat(np.arange(rows), lengths)
    bad[owners[failed]] = True
    if not feature.shape:
        return flat, bad
    if feature.elements is None:
        return to_lists(flat, lengths, pa.array(~valid)), bad
    return insert_nulls(pa.FixedSizeListArray.from_arrays(flat, feature.elements), pa.array(valid)), bad


def _flatten(value: Any, shape: tuple[int | None, ...]) -> list[str | None]:
    if not shape:
        return [_text(value)]
    if not isinstance(value, list) or (shape[0] is not None and len(value) != shape[0]):
        raise _Unfit
    return [text for entry in value for text in _flatten(entry, shape[1:])]


def _text(value: Any) -> str | None:
    """Return a scalar as it was written, without quotes."""
    if isinstance(value, (dict, list)):
        raise _Unfit
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)
