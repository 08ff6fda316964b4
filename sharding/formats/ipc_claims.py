"""Finds how many bytes an Arrow IPC message claims to hold, before Arrow allocates them.

A compressed buffer begins with its unpacked length, which Arrow trusts. Where the buffers lie is in the message's
metadata, a flatbuffer (Arrow's Message.fbs): just enough of it is read here.
Tested in tests/test_forged_files.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_DICTIONARY, _RECORD_BATCH = 2, 3  # types of a message's header: MessageHeader in Message.fbs
_DICTIONARY_DATA = 1  # a field of DictionaryBatch
_HEADER_TYPE, _HEADER = 1, 2  # fields of Message
_ROWS, _BUFFERS, _COMPRESSION = 0, 2, 3  # fields of RecordBatch
_DICTIONARIES, _BATCHES = 2, 3  # fields of Footer in File.fbs

Block = tuple[int, int, int]  # offset of a message in a file, and the bytes of its metadata and of its body


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClaims:
    """What the metadata of a record batch or a dictionary claims."""

    rows: int  # number of its rows
    buffers: tuple[tuple[int, int], ...]  # offset in the body and stored bytes of each buffer
    is_compressed: bool  # whether each buffer begins with its unpacked length

    @classmethod
    def of(cls, metadata: bytes) -> BatchClaims:
        """Read a message's metadata; raises a ValueError if it is damaged."""
        try:
            root = struct.unpack_from("<I", metadata)[0]
            kind = _field(metadata, root, _HEADER_TYPE)
            header = _field(metadata, root, _HEADER)
            if kind is None or header is None or metadata[kind] not in (_DICTIONARY, _RECORD_BATCH):
                raise ValueError("a record batch has no header")
            batch = _pointed(metadata, header)
            if metadata[kind] == _DICTIONARY:
                data = _field(metadata, batch, _DICTIONARY_DATA)
                if data is None:
                    return cls(rows=0, buffers=(), is_compressed=False)
                batch = _pointed(metadata, data)
            rows, buffers = _field(metadata, batch, _ROWS), _field(metadata, batch, _BUFFERS)
            return cls(
                rows=0 if rows is None else struct.unpack_from("<q", metadata, rows)[0],
                buffers=() if buffers is None else tuple(_structs(metadata, buffers, "<qq")),
                is_compressed=_field(metadata, batch, _COMPRESSION) is not None,
            )
        except (struct.error, IndexError) as error:
            raise ValueError("the metadata of a record batch is damaged") from error

    def bytes_in(self, body: pa.Buffer | None, body_bytes: int) -> int:
        """The unpacked bytes of all buffers.

        Args:
            body: the message's body; None if it was not read: only a compressed message needs it.

        Raises:
            ValueError: a buffer lies beyond it, or claims a negative size.
        """
        return sum(self._unpacked(body, body_bytes, offset, size) for offset, size in self.buffers)

    def _unpacked(self, body: pa.Buffer | None, body_bytes: int, offset: int, size: int) -> int:
        if offset < 0 or size < 0 or offset + size > body_bytes:
            raise ValueError("a buffer of a record batch lies beyond it")
        if not self.is_compressed or size < 8 or body is None:
            return size
        claimed = int(struct.unpack("<q", body[offset : offset + 8])[0])
        if claimed < -1:
            raise ValueError(f"a buffer claims {claimed} bytes")
        return size if claimed == -1 else claimed  # -1: this one is not compressed


def claimed_bytes(message: pa.ipc.Message) -> int:
    """Return the unpacked bytes of a record batch or a dictionary; of any other message 0.

    Raises:
        ValueError: the metadata is damaged.

    >>> batch = pa.record_batch([pa.array([0] * 4096)], names=["x"])
    >>> sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="lz4")
    >>> with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
    ...     writer.write_batch(batch)
    >>> [claimed_bytes(message) for message in pa.ipc.MessageReader.open_stream(sink.getvalue())]
    [0, 32768]
    """
    if message.type not in ("record batch", "dictionary"):
        return 0
    claims = BatchClaims.of(message.metadata.to_pybytes())
    return claims.bytes_in(message.body, 0 if message.body is None else message.body.size)


def block_places(footer: bytes) -> tuple[list[Block], list[Block]]:
    """Return where an IPC file's dictionaries and record batches are: offset, bytes of metadata and of body.

    Raises:
        ValueError: the footer is damaged.
    """
    try:
        root = struct.unpack_from("<I", footer)[0]
        places = [_field(footer, root, number) for number in (_DICTIONARIES, _BATCHES)]
        dictionaries, batches = ([] if at is None else list(_structs(footer, at, "<qi4xq")) for at in places)
    except (struct.error, IndexError) as error:
        raise ValueError("the footer is damaged") from error
    return dictionaries, batches


def _structs(data: bytes, place: int, form: str) -> Iterator[tuple[Any, ...]]:
    """Read a flatbuffer's vector of structs."""
    start = _pointed(data, place)
    count = struct.unpack_from("<I", data, start)[0]
    if count * struct.calcsize(form) > len(data):
        raise ValueError("a record batch has more buffers than its metadata holds")
    return struct.iter_unpack(form, data[start + 4 : start + 4 + count * struct.calcsize(form)])


def _field(data: bytes, table: int, number: int) -> int | None:
    """The place of a field in a flatbuffer's table; None if it is left out."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ValueError("the metadata of a record batch is damaged")
    size = struct.unpack_from("<H", data, vtable)[0]
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + place)[0] if place < size else 0
    return table + offset if offset else None


def _pointed(data: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", data, place)[0])
