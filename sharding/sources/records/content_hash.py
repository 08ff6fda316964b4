"""Hashes the content of records, however they are cut into batches, and whichever Arrow type holds their text.

Tested in tests/sharding/building/test_memory_sources.py.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from ringfeed.sharding.compute.arrow_casts import is_list
from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.formats.arrow_binary import data_of, offsets_of

_BYTES = (
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
)  # fmt: skip


class ContentHash:
    """The hash of all values of record batches that are fed to it, and of the columns' names."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], Any] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the records of a batch."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._add(name, column)

    def digest(self) -> str:
        """The hash of all records so far, 16 hexadecimal digits."""
        parts = [part for key, stream in self._streams.items() for part in (*key, stream.hexdigest())]
        return f"{derive_key(*parts):016x}"

    def _add(self, name: str, column: pa.Array) -> None:
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        self._feed(name, "valid", column.is_valid().cast(pa.uint8()))
        values, kind = column.drop_null(), column.type
        if pa.types.is_map(kind):
            kind = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
            values = pc.cast(values, kind)
        if is_list(kind):
            self._feed(name, "lengths", pc.list_value_length(values).cast(pa.int64()))
            self._add(f"{name}[]", values.flatten())
        elif pa.types.is_struct(kind):
            for i, field in enumerate(kind):
                self._add(f"{name}.{field.name}", pc.struct_field(values, [i]))
        elif kind in _BYTES:
            values = values.cast(pa.large_binary())
            offsets = offsets_of(values)
            self._feed(name, "lengths", pa.array(offsets[1:] - offsets[:-1]))
            self._stream(name, "bytes").update(data_of(values)[offsets[0] : offsets[-1]])
        elif not pa.types.is_null(kind):
            self._feed(name, str(kind), values.cast(pa.uint8()) if pa.types.is_boolean(kind) else values)

    def _feed(self, name: str, what: str, values: pa.Array) -> None:
        """Add the bytes of values of a fixed width, none of which is null."""
        width, buffer = values.type.bit_width // 8, values.buffers()[1] or pa.py_buffer(b"")
        self._stream(name, what).update(buffer[values.offset * width : (values.offset + len(values)) * width])

    def _stream(self, name: str, what: str) -> Any:
        return self._streams.setdefault((name, what), xxhash.xxh3_64())
