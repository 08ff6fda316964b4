"""Computed lengths of messages equal the lengths of encoded ones."""

import pyarrow as pa
from hypothesis import given

from ringfeed.sharding import Schema
from ringfeed.sharding.formats.example_encode import encode_examples
from ringfeed.sharding.formats.example_lengths import example_lengths
from tests.helpers.examples import batches


@given(batches())
def test_lengths_equal_those_of_encoded_messages(case: tuple[Schema, pa.RecordBatch]) -> None:
    schema, batch = case
    messages = encode_examples(batch, schema, None)
    assert example_lengths(batch, schema).tolist() == list(map(len, messages.to_pylist()))


def test_a_slice_of_a_batch_has_its_own_lengths() -> None:
    batch = pa.record_batch({"s": ["", "a" * 200, None, "b"], "l": [[1], [], None, [300, -1]]})
    schema = Schema.from_arrow(batch.schema, None)
    for start in range(4):
        part = batch.slice(start)
        expected = list(map(len, encode_examples(part, schema, None).to_pylist()))
        assert example_lengths(part, schema).tolist() == expected
