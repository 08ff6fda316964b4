"""Union by name of the schemas of table files: columns that some files lack, and types that differ.

A missing column is filled with nulls, as by pyarrow, DuckDB and Hugging Face's datasets. Types that differ become the
smallest type that holds every value of both exactly, if there is one.
Tested in tests/sharding/sources/tables/test_table_files.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrow_casts import can_cast, is_list, is_number
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.messages import counted, listed
from ringfeed.sharding.schema import Feature, check_distinct_names
from ringfeed.sharding.url_secrets import public_url

from .structs import Path
from .table_schemas import feature_of, flatten_schema

_logger = logging.getLogger(__name__)
_UNITS = ("s", "ms", "us", "ns")
_TEXTS = (pa.large_string(), pa.string_view())
_BINARIES = (pa.large_binary(), pa.binary_view())


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaUnion:
    """The columns of all files."""

    fields: tuple[pa.Field, ...]  # all columns but `left_out`: those of the first file, then those that later files add
    # Declared features of columns that have none of their own, or not the same in all files
    declared: Mapping[str, Feature]
    promoted: Mapping[str, pa.DataType]  # common types of other columns whose types differ
    missing: Mapping[str, frozenset[str]]  # the columns that a file lacks, by the URL of the file
    left_out: tuple[str, ...]  # unwanted columns that are structs, or have no common type
    paths: Mapping[str, Path]  # paths of the columns that are fields of structs


def unite_schemas(
    schemas: Sequence[tuple[str, pa.Schema]], wanted: Callable[[str], bool], features: Mapping[str, Feature]
) -> SchemaUnion:
    """Unite the schemas of files, given with the files' URLs.

    Raises:
        SourceError: a wanted column has no common type, or a file has two columns of one name.
    """
    columns = _collect_columns(schemas, wanted, features)
    left_out = dict.fromkeys(columns.structs)
    result: dict[str, pa.Field] = {}
    declared: dict[str, Feature] = {}
    promoted: dict[str, pa.DataType] = {}
    for name, fields in columns.fields.items():
        if name in left_out:  # a plain column in another file
            continue
        types = [column.type for column in fields]
        result[name] = next(iter(fields))
        own = {feature_of(column) for column in fields}
        if own != {None} and len(own) == 1:
            continue
        feature = features.get(name)
        if feature is not None and all(can_cast(kind, feature) for kind in types):
            declared[name] = feature
        elif len(own) > 1:
            kind = _common_type_of(types)
            if kind is not None:
                promoted[name] = kind
                result[name] = result[name].with_type(kind)
            elif wanted(name):
                raise _differing(name, fields)
            else:
                del result[name]
                left_out[name] = None
    missing = {
        url: frozenset(lacking)
        for names, urls in columns.files.items()
        if (lacking := result.keys() - names)
        for url in urls
    }
    _warn_of_missing([name for name in result if wanted(name)], missing, len(schemas))
    return SchemaUnion(
        fields=tuple(result.values()),
        declared=declared,
        promoted=promoted,
        missing=missing,
        left_out=tuple(left_out),
        paths={name: path for name, path in columns.paths.items() if path[1:]},
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns found in the files: distinct fields with the first URL of each, files by the names of their columns.

    Its `structs` are the unwanted columns that are structs in some file; its `paths` are of all columns.
    """

    fields: dict[str, dict[pa.Field, str]] = field(default_factory=dict)
    files: dict[frozenset[str], list[str]] = field(default_factory=dict)
    structs: dict[str, None] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)


def _collect_columns(
    schemas: Sequence[tuple[str, pa.Schema]], wanted: Callable[[str], bool], features: Mapping[str, Feature]
) -> _Columns:
    columns = _Columns()
    names: frozenset[str] = frozenset()
    before: pa.Schema | None = None
    for url, whole in schemas:
        if before is None or not whole.equals(before, check_metadata=True):
            before = whole
            schema, structs, paths = flatten_schema(whole, wanted, features)
            check_distinct_names(schema.names, f"{url}: ", "rename all but one and write the file again")
            for column in schema:
                path = paths.get(column.name, (column.name,))
                if columns.paths.setdefault(column.name, path) != path:
                    first = next(iter(columns.fields[column.name].values()))
                    raise SourceError(f"{url}: its structs differ from the structs of {first}; write both alike")
                columns.fields.setdefault(column.name, {}).setdefault(column.with_nullable(True), url)
            columns.structs.update(dict.fromkeys(structs))
            names = frozenset(schema.names)
        columns.files.setdefault(names, []).append(url)
    return columns


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The smallest type that holds every value of two types exactly, or None.

    >>> common_type(pa.int32(), pa.int64()), common_type(pa.timestamp("us"), pa.timestamp("ns"))
    (DataType(int64), TimestampType(timestamp[ns]))
    >>> common_type(pa.int64(), pa.float64())
    """
    one, other = _plain(one), _plain(other)
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_number(one) and is_number(other):
        kind = pa.from_numpy_dtype(np.promote_types(one.to_pandas_dtype(), other.to_pandas_dtype()))
        rounds = pa.types.is_floating(kind) and any(k.bit_width == 64 and pa.types.is_integer(k) for k in (one, other))
        return None if rounds else kind
    if is_list(one) and is_list(other):
        inner = common_type(one.value_type, other.value_type)
        sizes = {kind.list_size if pa.types.is_fixed_size_list(kind) else -1 for kind in (one, other)}
        return None if inner is None else pa.list_(inner, sizes.pop() if len(sizes) == 1 else -1)
    return _common_time(one, other)


def _common_time(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of the finer unit of two times of one kind and zone, or None."""
    is_kind = pa.types
    for same in (is_kind.is_timestamp, is_kind.is_duration, is_kind.is_time):
        if same(one) and same(other):
            unit = max(one.unit, other.unit, key=_UNITS.index)
            if same is is_kind.is_timestamp:
                return pa.timestamp(unit, one.tz) if one.tz == other.tz else None
            if same is is_kind.is_duration:
                return pa.duration(unit)
            return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the same values without a dictionary, 64-bit offsets or views."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if kind in _TEXTS:
        return pa.string()
    return pa.binary() if kind in _BINARIES else kind


def _common_type_of(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """The common type of several types, if Arrow can cast all of them to it."""
    kind = reduce(lambda one, other: None if one is None else common_type(one, other), types[1:], types[0])
    if kind is None:
        return None
    try:
        for source in types:
            pc.cast(pa.array([], source.value_type if pa.types.is_dictionary(source) else source), kind)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None
    return kind


def _differing(name: str, fields: Mapping[pa.Field, str]) -> SourceError:
    """The error for a column whose types have no common type; it suggests a cast only if one can work."""
    (one, first), *others = fields.items()
    other, url = next(((field, url) for field, url in others if common_type(one.type, field.type) is None), others[-1])
    kinds = [field.type for field in fields]
    casts = ["string", "binary"]  # to suggest the first that can hold all
    if all(is_number(kind) or pa.types.is_boolean(kind) for kind in kinds):
        casts = ["float64" if any(map(pa.types.is_floating, kinds)) else "int64"]
    cast = next((d for d in casts if all(can_cast(kind, Feature(name=name, dtype=d)) for kind in kinds)), None)
    remedy = f"read all as one type with --cast {name}={cast}, or " if cast else ""
    return SourceError(
        f"{url}: column {name!r} is {other.type} here and {one.type} in {first}; {remedy}"
        "leave it out with the first --drop-columns or --select"
    )


def _warn_of_missing(names: Sequence[str], missing: Mapping[str, frozenset[str]], files: int) -> None:
    lacking = [name for name in names if any(name in some for some in missing.values())]
    if lacking:
        url = next(url for url, some in missing.items() if not some.isdisjoint(lacking))
        _logger.warning(
            "%s of %s lack columns that others have, and get nulls there: %s (the first is %s)",
            f"{sum(not some.isdisjoint(lacking) for some in missing.values()):,}",
            counted(files, "file"),
            listed(lacking),
            public_url(url),
        )
