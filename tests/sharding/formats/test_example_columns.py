"""Columns parsed from any writer's Examples agree with TensorFlow's parser."""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringfeed.sharding.formats.example_columns import MARGIN_BYTES, ParsedExamples, parse_examples
from ringfeed.sharding.formats.protobuf_wire import canonical_example, iterate_fields, write_varint

KINDS = {1: "bytes", 2: "float", 3: "int64"}


def delimited(number: int, content: bytes) -> bytes:
    return write_varint(number << 3 | 2) + write_varint(len(content)) + content


def parsed(messages: Iterable[bytes]) -> ParsedExamples:
    messages = list(messages)
    lengths = np.array([len(message) for message in messages], np.int64)
    starts = np.cumsum(lengths + MARGIN_BYTES) - lengths - MARGIN_BYTES
    return parse_examples(b"".join(message + b"\xff" * MARGIN_BYTES for message in messages), starts, lengths)


def bits(values: Any) -> Any:
    """The bits of float32 values, with all NaNs equal: TensorFlow's pass through a Python float, which quiets them."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


def rows_of(result: ParsedExamples) -> dict[int, dict[str, tuple[str, list[Any]]]]:
    """Kind and values of each feature by message and name, floats as bits."""
    rows: dict[int, dict[str, tuple[str, list[Any]]]] = {int(row): {} for row in result.kept}
    for name, columns in result.columns.items():
        for values in columns:
            flat, counts = values.texts() if values.kind == "bytes" else values.numbers()
            flat = bits(flat) if values.kind == "float" else flat
            assert values.counts().tolist() == counts.tolist()
            assert len(flat) == counts.sum()
            end = 0
            for row, count in zip(values.rows.tolist(), counts.tolist(), strict=True):
                start, end = end, end + count
                rows[int(result.kept[row])][name] = (values.kind, flat[start:end].tolist() if count else [])
                if values.kind == "bytes":
                    rows[int(result.kept[row])][name] = ("bytes", flat[start:end].to_pylist())
    return rows


def by_tensorflow(message: bytes) -> dict[str, tuple[str, list[Any]]] | None:
    """`rows_of` for one message by TensorFlow's parser, or None if it refuses the message."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        features = tf.train.Example.FromString(message).features.feature
    except DecodeError:
        return None
    result = {}
    for name in features:
        kind = features[name].WhichOneof("kind")
        if kind is not None:
            values = list(getattr(features[name], kind).value)
            if kind == "float_list":
                values = bits(np.array(values, np.float32)).tolist()
            result[name] = (kind.removesuffix("_list"), values)
    return result


# --- messages as no writer but a test makes them ----------------------------------------------------------------

varints = st.integers(0, 2**64 - 1) | st.integers(0, 300)
unknown = st.one_of(
    st.builds(lambda n, v: write_varint(n << 3) + write_varint(v), st.integers(4, 90), varints),
    st.builds(delimited, st.integers(4, 90), st.binary(max_size=9)),
    st.builds(lambda n, v: write_varint(n << 3 | 1) + v, st.integers(4, 90), st.binary(min_size=8, max_size=8)),
    st.builds(lambda n, v: write_varint(n << 3 | 5) + v, st.integers(4, 90), st.binary(min_size=4, max_size=4)),
    st.builds(
        lambda n, v: write_varint(n << 3 | 3) + write_varint(8) + write_varint(v) + write_varint(n << 3 | 4),
        st.integers(4, 90),
        varints,
    ),
)
packed_ints = st.lists(varints, max_size=4).map(lambda values: delimited(1, b"".join(map(write_varint, values))))
packed_floats = st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(
    lambda values: delimited(1, np.array(values, "<f4").tobytes())
)
bodies = {
    1: st.binary(max_size=200).map(lambda value: delimited(1, value)),
    2: packed_floats | st.binary(min_size=4, max_size=4).map(lambda value: b"\x0d" + value),
    3: packed_ints | varints.map(lambda value: b"\x08" + write_varint(value)),
}


def joined(part: st.SearchStrategy[bytes], most: int = 3) -> st.SearchStrategy[bytes]:
    return st.lists(part, max_size=most).map(b"".join)


def lists(kind: int) -> st.SearchStrategy[bytes]:
    return joined(bodies[kind]).map(lambda body: delimited(kind, body))


keys = st.sampled_from(["", "a", "b", "label", "größe", "k" * 130]).map(lambda key: delimited(1, key.encode()))
features = joined(st.one_of(*map(lists, KINDS)), 2).map(lambda body: delimited(2, body))
usual_entries = st.builds(lambda key, kind: delimited(1, key + delimited(2, kind)), keys, st.one_of(*map(lists, KINDS)))
odd_entries = joined(keys | features).map(lambda body: delimited(1, body))
usual = joined(usual_entries).map(lambda body: delimited(1, body) if body else b"")
odd = joined(joined(usual_entries | odd_entries | unknown).map(lambda body: delimited(1, body)) | unknown)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    message = bytearray(draw(usual | odd))
    for _ in range(draw(st.integers(1, 3))):
        if message:
            message[draw(st.integers(0, len(message) - 1))] = draw(st.integers(0, 255))
    return bytes(message[: draw(st.integers(0, len(message)))])


def no_test(message: bytes) -> bool:
    """Whether a message is a SequenceExample, or an entry has unknown fields, which upb alone of the parsers drops."""
    try:
        canonical_example(message)
        for number, wire, start, stop in iterate_fields(message, 0, len(message)):
            if (number, wire) == (2, 2):
                return True
            if (number, wire) == (1, 2):
                for _, inner, at, to in iterate_fields(message, start, stop):
                    fields = iterate_fields(message, at, to) if inner == 2 else ()
                    if any(field[:2] not in ((1, 2), (2, 2)) for field in fields):
                        return True
    except ValueError:
        return any(field[:2] == (2, 2) for field in fields_until_damage(message))
    return False


def entry_of(*kinds: bytes) -> bytes:
    """The entry ``a`` of a map, whose Feature is written in parts."""
    return delimited(1, delimited(1, b"a") + b"".join(delimited(2, kind) for kind in kinds))


def fields_until_damage(message: bytes) -> list[tuple[int, int, int, int]]:
    found = []
    with suppress(ValueError):
        for field in iterate_fields(message, 0, len(message)):
            found.append(field)  # noqa: PERF402  # those before an error count
    return found


@settings(max_examples=200)
@given(st.lists(usual | odd | damaged(), max_size=6))
@example([delimited(1, b"\x80" * 12)])
@example(
    [delimited(1, delimited(1, delimited(1, b"a") + delimited(2, delimited(3, delimited(1, b"\x80" * 9 + b"\x7f")))))]
)
@example([delimited(1, entry_of(delimited(1, b"\0\0")) + entry_of(b"\x0d\0\0\0\0"))])  # a repeated key, first damaged
@example([delimited(1, entry_of(delimited(1, b"\x0a\x05a"), delimited(2, delimited(1, b"\0" * 4))))])
@example([delimited(1, entry_of(delimited(1, b"\x0a\x01"), delimited(1, b"a")))])  # two damaged parts, sound if joined
@example([delimited(1, entry_of(b"\x0a\x02", b"\x0a\x00"))])
def test_messages_of_any_form_are_read_as_by_tensorflow(messages: list[bytes]) -> None:
    messages = [message for message in messages if not no_test(message)]
    result = parsed(messages)
    expected = {i: values for i, message in enumerate(messages) if (values := by_tensorflow(message)) is not None}
    assert rows_of(result) == expected
    assert set(result.bad) == set(range(len(messages))) - set(expected)


@given(st.lists(usual | odd, max_size=4))
def test_the_canonical_form_keeps_the_values_and_is_stable(messages: list[bytes]) -> None:
    for message in messages:
        if not no_test(message):
            canonical = canonical_example(message)
            assert canonical_example(canonical) == canonical
            assert rows_of(parsed([canonical])) == rows_of(parsed([message]))


def test_long_lists_are_read_to_their_end() -> None:
    values = [bytes([65 + i % 26]) * (i % 5) for i in range(1000)]
    body = b"".join(delimited(1, value) for value in values)
    messages = [delimited(1, delimited(1, delimited(1, b"x") + delimited(2, delimited(1, b)))) for b in (body, b"")]
    rows = rows_of(parsed([*messages, messages[0]]))
    assert [rows[i]["x"] for i in range(3)] == [("bytes", values), ("bytes", []), ("bytes", values)]


def sequence_by_tensorflow(message: bytes) -> dict[str, tuple[str, list[Any]]] | None:
    """`rows_of` for one SequenceExample by TensorFlow's parser; None if it has no columns."""
    import tensorflow as tf

    found = tf.train.SequenceExample.FromString(message)
    result = dict(by_tensorflow(tf.train.Example(features=found.context).SerializeToString()) or {})
    for name, steps in found.feature_lists.feature_list.items():
        kinds, values, lengths = set(), [], []
        for step in steps.feature:
            kind = step.WhichOneof("kind")
            own = [] if kind is None else list(getattr(step, kind).value)
            kinds |= set() if kind is None else {kind}
            values += bits(np.array(own, np.float32)).tolist() if kind == "float_list" else own
            lengths.append(len(own))
        if len(kinds) > 1 or {f"{name}.values", f"{name}.lengths"} & set(found.context.feature):
            return None
        if kinds:
            result[f"{name}.values"] = (kinds.pop().removesuffix("_list"), values)
        result[f"{name}.lengths"] = ("int64", lengths)
    return result


context_keys = st.sampled_from(["a", "b", "s.values"]).map(lambda key: delimited(1, key.encode()))
contexts = st.builds(
    lambda key, kind: delimited(1, key + delimited(2, kind)), context_keys, st.one_of(*map(lists, KINDS))
)
steps = joined(st.one_of(*map(lists, KINDS)), 2).map(lambda kinds: delimited(1, kinds))
same_steps = st.one_of(*(joined(lists(kind).map(lambda body: delimited(1, body)), 5) for kind in KINDS))
step_keys = st.sampled_from(["", "s", "größe"]).map(lambda key: delimited(1, key.encode()))
step_lists = st.builds(lambda key, body: delimited(1, key + delimited(2, body)), step_keys, same_steps | joined(steps))
sequences = joined(
    joined(contexts).map(lambda body: delimited(1, body)) | joined(step_lists).map(lambda body: delimited(2, body)), 4
)


@settings(max_examples=200)
@example([bytes.fromhex("12140a0c0a0012080a020a000a0212000a040a001200")])  # a repeated list, first of two kinds
@given(st.lists(sequences, min_size=1, max_size=4))
def test_sequence_examples_are_read_as_by_tensorflow(messages: list[bytes]) -> None:
    result = parsed(messages)
    expected = {number: sequence_by_tensorflow(message) for number, message in enumerate(messages)}
    assert rows_of(result) == {number: row for number, row in expected.items() if row is not None}
    assert set(result.bad) == {number for number, row in expected.items() if row is None}


@pytest.mark.parametrize("length", [1 << 34, 1 << 36, (1 << 63) - 1])
def test_a_wrong_length_is_refused(length: int) -> None:
    assert list(parsed([b"\x0a" + write_varint(length) + b"x"]).bad) == [0]
