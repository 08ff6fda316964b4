"""Finds how many bytes an Arrow IPC message claims to hold, before Arrow allocates them.

A compressed buffer begins with its unpacked length, which Arrow trusts. Where the buffers lie is in the message's
metadata, a flatbuffer (Arrow's Message.fbs): just enough of it is read here.
Tested in tests/test_forged_files.py.
"""

from __future__ import annotations

import struct

import pyarrow as pa

__all__ = ["claimed_bytes"]

_DICTIONARY, _RECORD_BATCH = 2, 3  # types of a message's header: MessageHeader in Message.fbs
_DICTIONARY_DATA = 1  # a field of DictionaryBatch
_HEADER_TYPE, _HEADER = 1, 2  # fields of Message
_BUFFERS, _COMPRESSION = 2, 3  # fields of RecordBatch


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
    metadata = message.metadata.to_pybytes()
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
                return 0
            batch = _pointed(metadata, data)
        buffers, is_compressed = _field(metadata, batch, _BUFFERS), _field(metadata, batch, _COMPRESSION) is not None
        if buffers is None:
            return 0
        start = _pointed(metadata, buffers)
        count = struct.unpack_from("<I", metadata, start)[0]
        if count * 16 > len(metadata):
            raise ValueError("a record batch has more buffers than its metadata holds")
        pairs = [struct.unpack_from("<qq", metadata, start + 4 + 16 * number) for number in range(count)]
    except (struct.error, IndexError) as error:
        raise ValueError("the metadata of a record batch is damaged") from error
    return sum(_unpacked(message.body, offset, size, is_compressed=is_compressed) for offset, size in pairs)


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


def _unpacked(body: pa.Buffer | None, offset: int, size: int, *, is_compressed: bool) -> int:
    if body is None or offset < 0 or size < 0 or offset + size > body.size:
        raise ValueError("a buffer of a record batch lies beyond it")
    if not is_compressed or size < 8:
        return size
    claimed = int(struct.unpack("<q", body[offset : offset + 8])[0])
    if claimed < -1:
        raise ValueError(f"a buffer claims {claimed} bytes")
    return size if claimed == -1 else claimed  # -1: this one is not compressed
