"""The categories of ordered dictionaries of texts: pandas' ordered `Categorical`, Polars' `Enum`, R's ordered factor.

They are in the metadata of their field, where `Feature.from_arrow` finds them. An Arrow type has none, so they are read
from the first dictionary of a file; the writer checks that the records hold no others.
Tested in tests/sharding/sources/tables/test_categories.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.messages import listed
from ringfeed.sharding.schema import Feature, categories_of, with_categories

_MOST, _MOST_BYTES = 1000, 1 << 16  # more are plain strings: a Parquet page holds all names, and metadata too


def mark_categories(schema: pa.Schema, first: Callable[[list[str]], pa.RecordBatch | pa.Table | None]) -> pa.Schema:
    """Return the schema with the categories of its ordered dictionaries in the metadata of their fields.

    A dictionary of a single value has no order: a Parquet file without dictionary pages shows one for its first record.

    Args:
        schema: a file's schema.
        first: reads the first record or more of some columns; None if there are no records.
    """
    names = [field.name for field in schema if _is_ordered(field.type) and schema.names.count(field.name) == 1]
    batch = first(names) if names else None
    if batch is None or not batch.num_rows:
        return schema
    for name in names:
        column = batch.column(name)
        texts = (column.chunk(0) if isinstance(column, pa.ChunkedArray) else column).dictionary.to_pylist()
        if 1 < len(set(texts)) == len(texts) <= _MOST and None not in texts and sum(map(len, texts)) <= _MOST_BYTES:
            place = schema.get_field_index(name)
            schema = schema.set(place, with_categories(schema.field(place), texts))
    return schema


def agreed_categories(
    field: pa.Field, schemas: Sequence[tuple[str, pa.Schema]], features: Mapping[str, Feature]
) -> pa.Field:
    """Return a column's field with the categories that all files agree on, or with those that are declared for it.

    Args:
        schemas: schemas of `mark_categories`, with the URLs of their files.
        features: declared features; when a dataset is appended to, its own.

    Raises:
        SourceError: two files have different categories.
    """
    if field.name in features:
        return with_categories(field, features[field.name].categories)
    urls: dict[tuple[str, ...], str] = {}
    for url, schema in schemas:
        place = schema.get_field_index(field.name)
        if categories := categories_of(schema.field(place)) if place >= 0 else ():
            urls.setdefault(categories, url)
    if len(urls) > 1:
        (one, first), (other, second), *_ = urls.items()
        raise SourceError(
            f"{second}: column {field.name!r} has the ordered categories {listed(other)} here and {listed(one)} in "
            f"{first}; write both with the same, or read plain strings with --cast {field.name}=string"
        )
    return with_categories(field, next(iter(urls), ()))


def _is_ordered(kind: pa.DataType) -> bool:
    texts = (pa.string(), pa.large_string(), pa.string_view())
    return bool(pa.types.is_dictionary(kind) and kind.ordered and kind.value_type in texts)
