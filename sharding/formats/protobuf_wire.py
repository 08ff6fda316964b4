"""Reads protobuf's wire format field by field, and rewrites any valid `tf.train.Example` to its canonical form.

Exact but slow: for single messages, and for the few that `example_columns` finds unusual. `example_columns` and
`example_decode` read columns fast.
Tested in tests/sharding/formats/test_example_columns.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

_VARINT, _FIXED64, _DELIMITED, _GROUP, _GROUP_END, _FIXED32 = range(6)
_MAX_VARINT_BYTES = 10
_MAX_GROUP_DEPTH = 100  # the limit of protobuf's own readers
_BYTES, _FLOAT, _INT64 = 1, 2, 3  # the `kind` oneof of Feature


def read_varint(data: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """Read the unsigned 64-bit integer at a position; returns also the position after it.

    Raises:
        ValueError: it extends past `end`, or has more than ten bytes.

    >>> read_varint(bytes([0xAC, 0x02]), 0, 2)
    (300, 2)
    """
    if position < end and data[position] < 0x80:  # as nearly all are
        return data[position], position + 1
    value = shift = 0
    for at in range(position, min(end, position + _MAX_VARINT_BYTES)):
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + 1
        shift += 7
    raise ValueError(f"the integer at byte {position} is cut short or has more than ten bytes")


def read_varints(data: bytes) -> Iterator[int]:
    """Yield consecutive varints."""
    position = 0
    while position < len(data):
        value, position = read_varint(data, position, len(data))
        yield value


def write_varint(value: int) -> bytes:
    """Encode a minimal varint, the inverse of `read_varint`.

    >>> write_varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def iterate_fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type and half-open range of the content of each field of a message, except for groups.

    Raises:
        ValueError: the bytes are no message.
    """
    open_groups: list[int] = []
    while start < end:
        tag_at = start
        tag, start = read_varint(data, start, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ValueError(f"byte {tag_at} does not start a field")
        if wire == _DELIMITED:
            length, start = read_varint(data, start, end)
            stop = start + length
        elif wire == _VARINT:
            stop = read_varint(data, start, end)[1]
        elif wire in (_FIXED32, _FIXED64):
            stop = start + (4 if wire == _FIXED32 else 8)
        elif wire == _GROUP:
            open_groups.append(number)
            if len(open_groups) > _MAX_GROUP_DEPTH:
                raise ValueError(f"groups are nested more than {_MAX_GROUP_DEPTH} deep")
            continue
        elif wire == _GROUP_END:
            if not open_groups or open_groups.pop() != number:
                raise ValueError(f"byte {tag_at} ends a group that has no start")
            continue
        else:
            raise ValueError(f"byte {tag_at} does not start a field")
        if stop > end:
            raise ValueError(f"the field at byte {tag_at} extends past the end")
        if not open_groups:
            yield number, wire, start, stop
        start = stop
    if open_groups:
        raise ValueError("a group has no end")


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field: an integer, or the content of a delimited or fixed-width field.

    >>> list(read_fields(bytes.fromhex("08 ac02 12 03 616263")))
    [(1, 300), (2, b'abc')]

    Raises:
        ValueError: the bytes are no message.
    """
    for number, wire, start, stop in iterate_fields(message, 0, len(message)):
        yield number, read_varint(message, start, stop)[0] if wire == _VARINT else message[start:stop]


def canonical_example(message: bytes) -> bytes:
    """Rewrite a `tf.train.Example` as protobuf's writers write it: each key once, packed lists, no unknown fields.

    Features without a kind are dropped, as they have no value. Repeated fields are merged by protobuf's rules: the last
    entry with a key counts. What a later field replaces is checked like the rest, as protobuf does.

    A `tf.train.SequenceExample` becomes the Example of its context, and of two features for each of its feature lists
    ``a``: ``a.values``, the values of all steps in order, and ``a.lengths``, their number in each step.

    Raises:
        ValueError: the message is neither, the steps of a feature list have several kinds, or two features one name.
    """
    features: dict[bytes, bytes] = {}
    lists: dict[bytes, tuple[set[int], bytes, bytes]] = {}
    for number, wire, start, stop in iterate_fields(message, 0, len(message)):
        if number not in (1, 2) or wire != _DELIMITED:
            continue
        for inner, inner_wire, at, to in iterate_fields(message, start, stop):
            if (inner, inner_wire) == (1, _DELIMITED):
                key, value = _entry(message[at:to])
                if number == 1:
                    features.pop(key, None)
                    features[key] = _canonical_feature(value)
                else:
                    lists.pop(key, None)
                    lists[key] = _steps(value)
    for key, (kinds, joined, lengths) in lists.items():
        if len(kinds) > 1:
            raise ValueError(f"the steps of the feature list {key.decode()!r} hold values of several types")
        values = _feature(kinds.pop(), joined) if kinds else b""
        for ending, feature in ((b".values", values), (b".lengths", lengths)):
            if features.setdefault(key + ending, feature) is not feature:
                raise ValueError(f"the context of the SequenceExample has a feature {(key + ending).decode()!r}, too")
    body = b"".join(
        _delimited(1, _delimited(1, key) + _delimited(2, value)) for key, value in features.items() if value
    )
    return _delimited(1, body) if body else b""


def _steps(feature_list: bytes) -> tuple[set[int], bytes, bytes]:
    """The kinds and values of all steps of a FeatureList, and the number in each step as a canonical Feature."""
    kinds, joined, lengths = set[int](), [], []
    for number, wire, start, stop in iterate_fields(feature_list, 0, len(feature_list)):
        if (number, wire) != (1, _DELIMITED):
            continue
        kind, values = _values(feature_list[start:stop])
        count = len(values) // 4
        if kind == _BYTES:
            count = sum(1 for _ in iterate_fields(values, 0, len(values)))
        elif kind == _INT64:
            count = sum(byte < 0x80 for byte in values)  # the last of each number
        kinds |= {kind} - {0}
        joined.append(values)
        lengths.append(write_varint(count))
    return kinds, b"".join(joined), _feature(_INT64, b"".join(lengths))


def _entry(entry: bytes) -> tuple[bytes, bytes]:
    """Key and value of one entry of a map."""
    key, value = b"", b""
    for number, wire, start, stop in iterate_fields(entry, 0, len(entry)):
        if (number, wire) == (1, _DELIMITED):
            key = entry[start:stop]
            try:
                key.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"the name of a feature is not UTF-8: {key[:40]!r}") from error
        elif (number, wire) == (2, _DELIMITED):
            deque(iterate_fields(entry, start, stop), 0)  # checks this part: its merger with the next may hide a damage
            value += entry[start:stop]  # the concatenation of two messages is their merger
    return key, value


def _canonical_feature(feature: bytes) -> bytes:
    kind, values = _values(feature)
    return _feature(kind, values) if kind else b""


def _feature(kind: int, values: bytes) -> bytes:
    """A canonical Feature of values, as `_values` returns them."""
    return _delimited(kind, _delimited(1, values) if values and kind != _BYTES else values)


def _values(feature: bytes) -> tuple[int, bytes]:
    """The kind of a Feature, 0 if it has none, and its values: packed, or fields of bytes."""
    kind, values = 0, b""
    for number, wire, start, stop in iterate_fields(feature, 0, len(feature)):
        if number in (_BYTES, _FLOAT, _INT64) and wire == _DELIMITED:
            part = _list(number, feature[start:stop])
            values = values + part if number == kind else part
            kind = number
    return kind, values


def _list(kind: int, body: bytes) -> bytes:
    values: list[bytes] = []
    for number, wire, start, stop in iterate_fields(body, 0, len(body)):
        if number != 1:
            continue
        content = body[start:stop]
        if kind == _BYTES and wire == _DELIMITED:
            values.append(_delimited(1, content))
        elif kind == _FLOAT and wire in (_DELIMITED, _FIXED32):
            if len(content) % 4:
                raise ValueError("the length of a list of floats is no multiple of 4 bytes")
            values.append(content)
        elif kind == _INT64 and wire in (_DELIMITED, _VARINT):
            at = 0
            while at < len(content):
                at = read_varint(content, at, len(content))[1]
            values.append(content)
    return b"".join(values)


def _delimited(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _DELIMITED]) + write_varint(len(content)) + content
