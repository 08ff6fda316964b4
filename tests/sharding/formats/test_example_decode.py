"""Decoding many `tf.train.Example` messages at once agrees with the encoder and the single-message decoder."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from ringfeed.sharding import Feature, Schema
from ringfeed.sharding.formats import example_decode as module
from ringfeed.sharding.formats.example_decode import decode_example, decode_examples
from ringfeed.sharding.formats.example_encode import RecordLayout, delimited, encode_examples, encode_matrix
from ringfeed.sharding.formats.example_matrix import decode_matrix
from ringfeed.sharding.formats.protobuf_wire import read_fields
from tests.helpers.examples import GOLDEN, batches, golden_case, layout_of

pytestmark = pytest.mark.usefixtures("implementation")


def decoded(messages: list[bytes], schema: Schema, names: list[str] | None = None) -> pa.RecordBatch:
    """Decode messages with other bytes between them, as in TFRecord frames."""
    ends = np.cumsum([len(message) + 3 for message in messages], dtype=np.int64)
    starts = ends - [len(message) for message in messages]
    data = np.frombuffer(b"".join(b"\xff\x0a\x80" + message for message in messages), np.uint8)
    return decode_examples(data, starts, ends, schema, names)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages that are decoded one by one."""
    seen: list[bytes] = []

    def spy(message: bytes, schema: Schema) -> dict[str, object]:
        seen.append(message)
        return decode_example(message, schema)

    monkeypatch.setattr(module, "decode_example", spy)
    return seen


@pytest.mark.parametrize("few", [0, 16])
@given(case=batches())
def test_decoded_columns_equal_the_encoded_ones(few: int, case: tuple[Schema, pa.RecordBatch]) -> None:
    schema, batch = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", few)
        patch.delattr(module, "decode_example")  # which is there for the messages of others
        for layout in {None, layout_of(schema, batch)}:
            found = decoded(encode_examples(batch, schema, layout).to_pylist(), schema)
            found.validate(full=True)
            assert found.schema.equals(schema.arrow, check_metadata=True)
            assert found.equals(batch)


@given(case=batches())
def test_selected_columns_equal_those_of_a_full_decode(case: tuple[Schema, pa.RecordBatch]) -> None:
    schema, batch = case
    messages = encode_examples(batch, schema, None).to_pylist()
    for name in schema.names:
        assert decoded(messages, schema, [name]).column(0).equals(batch.column(name))


@given(case=batches(nulls=False))
def test_a_matrix_of_a_fixed_layout_is_decoded(case: tuple[Schema, pa.RecordBatch]) -> None:
    schema, batch = case
    layout: RecordLayout | None = layout_of(schema, batch)
    if layout is not None:
        matrix = encode_matrix(batch, schema, layout, margins=(12, 4))
        assert decode_matrix(matrix[:, 12:-4], schema, layout).equals(batch)


def test_messages_of_tensorflow_are_decoded() -> None:
    schema, batch = golden_case()
    assert decoded([GOLDEN] * 3, schema).to_pylist() == batch.to_pylist() * 3


def test_entries_in_another_order_are_decoded_one_by_one(one_by_one: list[bytes]) -> None:
    schema, batch = golden_case()
    ((_, entries),) = read_fields(GOLDEN)
    assert isinstance(entries, bytes)
    turned = [delimited(0x0A, entry) for _, entry in read_fields(entries) if isinstance(entry, bytes)][::-1]
    messages = [GOLDEN, delimited(0x0A, b"".join(turned))]
    assert decoded(messages, schema).to_pylist() == batch.to_pylist() * 2
    assert one_by_one == messages


def test_a_long_list_beside_short_ones() -> None:
    schema = Schema(features=(Feature(name="x", dtype="string", shape=(None,)),))
    rows = [[f"{i}" * (i % 200) for i in range(n)] for n in (0, 1, 1000, *range(30))]
    batch = pa.RecordBatch.from_arrays([pa.array(rows, pa.list_(pa.string()))], schema=schema.arrow)
    assert decoded(encode_examples(batch, schema, None).to_pylist(), schema).equals(batch)


def test_no_messages_give_no_records() -> None:
    schema, batch = golden_case()
    assert decoded([], schema).equals(batch.slice(0, 0))


@pytest.mark.parametrize("cut", [1, 5, 30, len(GOLDEN) - 1])
def test_a_truncated_message_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match=r"is cut short|extends past"):
        decoded([GOLDEN, GOLDEN[:cut]], golden_case()[0])
