"""The protobuf wire format, as far as reading it without a schema goes: a message's fields by their numbers."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["read_fields", "read_varint", "read_varints"]

_FIXED = {1: 8, 5: 4}  # wire types of fixed width, and their bytes


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an integer, or the content of what is length-delimited or of fixed width.

    >>> list(read_fields(bytes.fromhex("08 ac02 12 03 616263")))
    [(1, 300), (2, b'abc')]

    Raises:
        ValueError: the message is cut short, or holds what no message does.
    """
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        wire_type = tag & 7
        if wire_type == 0:
            number, position = read_varint(message, position)
            yield tag >> 3, number
            continue
        if wire_type == 2:
            length, position = read_varint(message, position)
        elif wire_type in _FIXED:
            length = _FIXED[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} at byte {position} is none of protobuf's")
        if position + length > len(message):
            raise ValueError(f"a field of {length} bytes at byte {position} goes beyond the message's {len(message)}")
        yield tag >> 3, message[position : position + length]
        position += length


def read_varints(data: bytes) -> Iterator[int]:
    """The varints that lie one after the other."""
    position = 0
    while position < len(data):
        value, position = read_varint(data, position)
        yield value


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A varint, unsigned, and the position after it.

    Raises:
        ValueError: the data ends within it.
    """
    value = shift = 0
    while position < len(data):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError(f"the data ends within a varint, at byte {position}")
