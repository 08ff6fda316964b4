"""Parses blocks of foreign `tf.train.Example` messages to columns, without TensorFlow and without a schema.

All messages of a block are read in lockstep: each NumPy operation moves a cursor in every one of them, so that the cost
is per feature and block, not per record. This reads the canonical form that protobuf's writers give an Example; other
messages are rewritten to it first (`protobuf_wire.canonical_example`). The proto is that of
tensorflow/core/example/{example,feature}.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute.arrays import Bools, Int64, UInt8, UInt64

from .protobuf_wire import canonical_example, iterate_fields

MARGIN_BYTES = 4  # must follow each message, as reads go just past its end; the footer of a TFRecord frame does
_KINDS = {0x0A: "bytes", 0x12: "float", 0x1A: "int64"}  # tags of the `kind` oneof of Feature
_SHORT_BYTES = 32  # ranges up to this mean length are gathered byte by byte, at 5 ns each, longer ones one by one
_STEPS = 64  # values of a record that are read in lockstep; longer lists, which are rare, continue one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureValues:
    """The values of one feature and kind in the records of a block that have them."""

    kind: str  # ``bytes``, ``float`` or ``int64``
    data: bytes  # bytes that hold the values
    rows: Int64  # numbers of the records, ascending, int64 [records]
    starts: Int64  # start in `data` of each record's packed numbers, or of each value if the kind is bytes
    ends: Int64  # end of the same ranges, which are half-open
    value_counts: Int64  # number of values in each record, if the kind is bytes

    def numbers(self) -> tuple[npt.NDArray[np.generic], Int64]:
        """All numbers, record after record, as float32 or int64; and the number in each record."""
        lengths = self.ends - self.starts
        content = _gather(self.data, self.starts, lengths)
        if self.kind == "float":
            return content.view("<f4").astype(np.float32, copy=False), lengths // 4
        varints, ends = unpack_varints(content)
        values = varints.view(np.int64)
        if len(values) == len(lengths) and lengths.all():
            return values, np.ones(len(lengths), np.int64)
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        return values, np.diff(np.searchsorted(ends, bounds, side="right"))

    def texts(self) -> tuple[pa.BinaryArray, Int64]:
        """All bytes values, record after record; and the number in each record."""
        spans = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return pa.array([self.data[start:end] for start, end in spans], pa.binary()), self.value_counts

    def counts(self) -> Int64:
        """The number of values in each record."""
        if self.kind == "float":
            return (self.ends - self.starts) // 4
        return self.value_counts if self.kind == "bytes" else self.numbers()[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedExamples:
    """The features of a block of messages."""

    kept: Int64  # numbers of the messages that are Examples, int64; `FeatureValues.rows` are positions in it
    bad: Mapping[int, str]  # faults of the other messages, by number
    # Values by feature name, an entry for each kind of list that the feature has
    columns: Mapping[str, tuple[FeatureValues, ...]]


def parse_examples(data: bytes, starts: Int64, lengths: Int64) -> ParsedExamples:
    """Find the values of every feature in many messages.

    Args:
        data: bytes that hold the messages, each followed by `MARGIN_BYTES`.
    """
    columns, odd = _locate(data, starts, lengths)
    bad: dict[int, str] = {}
    good = np.ones(len(starts), bool)
    if odd.any():
        pieces, size = [data], len(data)
        starts, lengths = starts.copy(), lengths.copy()
        for row in np.flatnonzero(odd).tolist():
            try:
                message = canonical_example(data[starts[row] : starts[row] + lengths[row]])
            except ValueError as error:
                bad[row] = str(error)
                continue
            starts[row], lengths[row] = size, len(message)
            pieces += [message, bytes(MARGIN_BYTES)]
            size += len(message) + MARGIN_BYTES
        good[list(bad)] = False
        columns, odd = _locate(b"".join(pieces), starts[good], lengths[good])
        assert not odd.any()
    return ParsedExamples(kept=np.flatnonzero(good), bad=bad, columns=columns)


def _locate(data: bytes, starts: Int64, lengths: Int64) -> tuple[dict[str, tuple[FeatureValues, ...]], Bools]:
    """The columns, and which messages are not canonical; the columns are meaningless for these."""
    content = np.frombuffer(data, np.uint8)
    odd = np.zeros(len(starts), bool)
    rows = np.flatnonzero(lengths)
    ends = starts + lengths
    at, stop, usual = _delimited(content, starts[rows], ends[rows], 0x0A)
    usual &= stop == ends[rows]
    places: dict[bytes, list[tuple[Int64, Int64, Int64]]] = {}  # rows and range of each Feature, by key
    while True:
        odd[rows[~usual]] = True
        more = usual & (at < ends[rows])
        rows, at = rows[more], at[more]
        if not len(rows):
            break
        entry, stop, usual = _delimited(content, at, ends[rows], 0x0A)
        key, key_end, is_key = _delimited(content, entry, stop, 0x0A)
        value, value_end, is_value = _delimited(content, key_end, stop, 0x12)
        usual &= is_key & is_value & (value_end == stop)
        good = np.flatnonzero(usual)
        for name, members in _by_key(data, key[good], key_end[good]):
            chosen = good[members]
            places.setdefault(name, []).append((rows[chosen], value[chosen], value_end[chosen]))
        at = stop
    columns: dict[str, tuple[FeatureValues, ...]] = {}
    for name, pieces in places.items():
        rows, at, stop = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
        if len(pieces) > 1:
            order = np.argsort(rows, kind="stable")
            rows, at, stop = rows[order], at[order], stop[order]
            odd[rows[1:][rows[1:] == rows[:-1]]] = True  # a repeated key
        some = at < stop  # a Feature without a kind has no value
        try:
            columns[name.decode()] = tuple(_values(data, content, rows[some], at[some], stop[some], odd))
        except UnicodeDecodeError:
            odd[rows] = True
    return columns, odd


def _by_key(data: bytes, starts: Int64, ends: Int64) -> list[tuple[bytes, Int64]]:
    """The distinct keys, each with the entries that have it."""
    groups = []
    left = np.arange(len(starts))
    while len(left):
        key = data[starts[left[0]] : ends[left[0]]]
        alike = (ends - starts)[left] == len(key)
        if key:
            letters = _gather(data, starts[left[alike]], np.full(int(alike.sum()), len(key))).reshape(-1, len(key))
            alike[alike] = (letters == np.frombuffer(key, np.uint8)).all(axis=1)
        groups.append((key, left[alike]))
        left = left[~alike]
    return groups


def _values(data: bytes, content: UInt8, rows: Int64, starts: Int64, ends: Int64, odd: Bools) -> list[FeatureValues]:
    """One `FeatureValues` per kind; rows that are not canonical are marked in `odd`."""
    result = []
    tags = content[starts]
    odd[rows[(tags != 0x0A) & (tags != 0x12) & (tags != 0x1A)]] = True
    for tag, kind in _KINDS.items():
        if not (chosen := tags == tag).any():
            continue
        members, (at, stop, usual) = rows[chosen], _delimited(content, starts[chosen], ends[chosen], tag)
        usual &= stop == ends[chosen]
        if kind == "bytes":
            starts_, ends_, counts, is_list = _bytes_lists(data, content, at, stop)
            usual &= is_list
        else:
            starts_, ends_, is_list = _packed(content, at, stop, kind)
            usual &= is_list
            counts = np.empty(0, np.int64)
        odd[members[~usual]] = True
        result.append(
            FeatureValues(kind=kind, data=data, rows=members, starts=starts_, ends=ends_, value_counts=counts)
        )
    return result


def _packed(content: UInt8, starts: Int64, ends: Int64, kind: str) -> tuple[Int64, Int64, Bools]:
    """The range of each list's packed numbers, and whether each list is canonical."""
    at, stop, usual = _delimited(content, starts, ends, 0x0A)
    usual &= stop == ends
    empty = starts == ends
    at, stop = np.where(usual, at, ends), np.where(usual, stop, ends)
    if kind == "float":
        return at, stop, empty | (usual & ((stop - at) % 4 == 0))
    usual &= (stop == at) | (content[stop - 1] < 0x80)
    for long in np.flatnonzero(usual & (stop - at > 10)).tolist():
        finals = np.flatnonzero(content[at[long] : stop[long]] < 0x80)
        usual[long] = np.diff(finals, prepend=-1).max() <= 10
    return at, stop, empty | usual


def _bytes_lists(data: bytes, content: UInt8, starts: Int64, ends: Int64) -> tuple[Int64, Int64, Int64, Bools]:
    """The range of each value, the number in each list, and whether each list is canonical."""
    usual = np.ones(len(starts), bool)
    none = np.empty(0, np.int64)
    pieces = [(none, none, none)]  # the list and the range of each value
    left, at = np.arange(len(starts)), starts
    for _ in range(_STEPS):
        more = at < ends[left]
        left, at = left[more], at[more]
        if not len(left):
            break
        value, stop, ok = _delimited(content, at, ends[left], 0x0A)
        usual[left[~ok]] = False
        pieces.append((left[ok], value[ok], stop[ok]))
        left, at = left[ok], stop[ok]
    for number, start in zip(left.tolist(), at.tolist(), strict=True):
        try:
            fields = list(iterate_fields(data, start, int(ends[number])))
        except ValueError:
            fields = [(0, 0, 0, 0)]
        if any(field[:2] != (1, 2) for field in fields):
            usual[number] = False
            continue
        ranges = np.array([field[2:] for field in fields], np.int64).reshape(-1, 2)
        pieces.append((np.full(len(ranges), number), ranges[:, 0], ranges[:, 1]))
    owner, at, stop = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    order = np.argsort(owner, kind="stable")
    return at[order], stop[order], np.bincount(owner, minlength=len(starts)), usual


def _delimited(content: UInt8, starts: Int64, ends: Int64, tag: int) -> tuple[Int64, Int64, Bools]:
    """Range of the content of the length-delimited field with a tag at each start, and whether there is one.

    Where there is none both bounds are the end given, so that whatever is looked for next is not there either.
    """
    is_present = (starts < ends) & (content[starts] == tag)
    at = np.minimum(starts + 1, ends)
    lengths = content[at].astype(np.int64)
    at += 1
    going = np.flatnonzero(lengths >= 0x80)
    lengths[going] &= 0x7F
    for shift in (7, 14, 21, 28):
        if not len(going):
            break
        inside = at[going] < ends[going]
        is_present[going[~inside]] = False
        going = going[inside]
        more = content[at[going]].astype(np.int64)
        lengths[going] |= (more & 0x7F) << shift
        at[going] += 1
        going = going[more >= 0x80]
    is_present[going] = False  # 2**35 or more, or padded to more bytes than that takes
    stops = at + lengths
    is_present &= stops <= ends
    return np.where(is_present, at, ends), np.where(is_present, stops, ends), is_present


def _gather(data: bytes, starts: Int64, lengths: Int64) -> UInt8:
    """The bytes of many ranges, end to end."""
    if not len(starts):
        return np.empty(0, np.uint8)
    width = int(lengths[0])
    if width and (lengths == width).all():  # as items of that width: 10 times as fast as byte by byte
        items = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))
        return items[starts].view(np.uint8)
    ends = np.cumsum(lengths)
    if ends[-1] <= _SHORT_BYTES * len(starts):
        places = np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1])
        return np.frombuffer(data, np.uint8).take(places)
    spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return np.frombuffer(b"".join([data[start:end] for start, end in spans]), np.uint8)


def unpack_varints(content: UInt8) -> tuple[UInt64, Int64]:
    """Decode consecutive varints, and the position after each; an overlong one is cut to ten bytes.

    >>> unpack_varints(np.array([0xAC, 0x02, 0x05], np.uint8))
    (array([300,   5], dtype=uint64), array([2, 3]))
    """
    ends = np.flatnonzero(content < 0x80) + 1
    starts = np.concatenate([[0], ends[:-1]])[: len(ends)]
    widths = ends - starts
    values = (content[starts] & 0x7F).astype(np.uint64)
    for position in range(1, min(10, int(widths.max(initial=0)))):
        longer = np.flatnonzero(widths > position)
        values[longer] |= (content[starts[longer] + position] & 0x7F).astype(np.uint64) << np.uint64(7 * position)
    return values, ends
