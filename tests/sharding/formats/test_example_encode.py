"""Encoded `tf.train.Example` messages agree with TensorFlow's parser and writer."""

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.sharding import Feature, Schema
from ringfeed.sharding.formats.example_decode import decode_example
from ringfeed.sharding.formats.example_encode import RecordLayout, encode_examples, example_lengths, varint_width
from tests.helpers.examples import GOLDEN, batches, golden_case, layout_of, values_of

pytestmark = pytest.mark.usefixtures("implementation")


@given(batches())
def test_decoding_inverts_encoding(case: tuple[Schema, pa.RecordBatch]) -> None:
    schema, batch = case
    for layout in {None, layout_of(schema, batch)}:
        messages = encode_examples(batch, schema, layout)
        assert [decode_example(m, schema) for m in messages.to_pylist()] == values_of(schema, batch)


@given(batches(), st.data())
def test_a_slice_is_encoded_like_its_rows(case: tuple[Schema, pa.RecordBatch], data: st.DataObject) -> None:
    schema, batch = case
    start = data.draw(st.integers(0, batch.num_rows - 1))
    whole = encode_examples(batch, schema, None).to_pylist()
    assert encode_examples(batch.slice(start), schema, None).to_pylist() == whole[start:]
    assert example_lengths(batch.slice(start), schema).tolist() == list(map(len, whole[start:]))
    if (layout := layout_of(schema, batch)) is not None:
        whole = encode_examples(batch, schema, layout).to_pylist()
        assert encode_examples(batch.slice(start), schema, layout).to_pylist() == whole[start:]


@given(batches(nulls=False))
def test_values_are_at_their_layouts_offsets(case: tuple[Schema, pa.RecordBatch]) -> None:
    schema, batch = case
    layout = layout_of(schema, batch)
    if layout is None:
        assert any(f.elements is None or f.example_kind == "bytes" for f in schema.features)
        return
    for message, row in zip(encode_examples(batch, schema, layout).to_pylist(), batch.to_pylist(), strict=True):
        assert len(message) == layout.example_bytes
        for feature, column in zip(schema.features, layout.columns, strict=True):
            if feature.example_kind == "int64":
                continue
            dtype = "<f4" if feature.example_kind == "float" else np.dtype(feature.dtype).newbyteorder("<")
            found = np.frombuffer(message, dtype, feature.elements or 1, column.offset).tolist()
            assert found == (row[feature.name] if feature.shape else [row[feature.name]])


@pytest.mark.parametrize(("value", "width"), [(0, 1), (127, 1), (128, 2), (2**56 - 1, 8), (2**63 - 1, 9), (-1, 10)])
def test_varints_are_as_wide_as_the_widest_value(value: int, width: int) -> None:
    assert varint_width(min(value, 0), max(value, 0)) == width


def test_a_layout_of_another_schema_is_refused() -> None:
    schema = Schema(features=(Feature(name="x", dtype="float32"),))
    batch = pa.RecordBatch.from_arrays([pa.array([1.0], pa.float32())], schema=schema.arrow)
    with pytest.raises(ValueError, match="does not fit the schema"):
        encode_examples(batch, schema, RecordLayout(example_bytes=3, columns=()))


def test_bytes_equal_those_of_tensorflow() -> None:
    schema, batch = golden_case()
    assert encode_examples(batch, schema, None).to_pylist() == [GOLDEN]


def test_unknown_wire_types_are_refused() -> None:
    with pytest.raises(ValueError, match="length-delimited"):
        decode_example(b"\x08\x01", Schema(features=()))


@pytest.fixture(scope="module")
def tf() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow")


class TestAgainstTensorFlow:
    def test_tensorflow_still_writes_the_golden_bytes(self, tf: Any) -> None:
        def ints(*values: int) -> Any:
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

        feature = {
            "a": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, -2.0])),
            "b": ints(-7),
            "c": tf.train.Feature(bytes_list=tf.train.BytesList(value=["grün".encode()])),
            "d": ints(1, 300, 2**40),
        }
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        assert example.SerializeToString(deterministic=True) == GOLDEN

    @given(case=batches())
    @settings(max_examples=40)
    def test_parse_example_returns_exactly_the_values(self, tf: Any, case: tuple[Schema, pa.RecordBatch]) -> None:
        schema, batch = case
        schema = Schema(features=tuple(f for f in schema.features if f.name))  # parse_example has no empty names
        batch = batch.select(list(schema.names))
        if not schema.features:
            return
        dtypes = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string, "raw": tf.string}
        spec = {f.name: tf.io.RaggedFeature(dtypes[f.example_kind]) for f in schema.features}
        for layout in {None, layout_of(schema, batch)}:
            parsed = tf.io.parse_example(encode_examples(batch, schema, layout).to_pylist(), spec)
            for feature, column in zip(schema.features, batch.columns, strict=True):
                found = parsed[feature.name].to_list()
                assert [self.plain(values, feature) for values in found] == [
                    self.flat(value, feature) for value in column.to_pylist()
                ]

    @staticmethod
    def plain(values: list[Any], feature: Feature) -> list[Any]:
        if feature.example_kind == "raw":
            return [n for value in values for n in np.frombuffer(value, feature.dtype).tolist()]
        if feature.dtype == "uint64":
            return [value % 2**64 for value in values]
        return [value.decode() for value in values] if feature.dtype == "string" else values

    @staticmethod
    def flat(value: Any, feature: Feature) -> list[Any]:
        if value is None:
            return []
        return value if feature.shape else [value]

    def test_messages_parse_one_by_one_too(self, tf: Any) -> None:
        schema = Schema(features=(Feature(name="x", dtype="int64"), Feature(name="y", dtype="uint8")))
        batch = pa.RecordBatch.from_arrays([pa.array([5, 10**12]), pa.array([200, 3], pa.uint8())], schema=schema.arrow)
        messages = encode_examples(batch, schema, layout_of(schema, batch)).to_pylist()
        assert len(set(map(len, messages))) == 1
        spec = {"x": tf.io.FixedLenFeature([], tf.int64), "y": tf.io.FixedLenFeature([], tf.int64)}
        parsed = [tf.io.parse_single_example(m, spec) for m in messages]
        assert [(int(p["x"]), int(p["y"])) for p in parsed] == [(5, 200), (10**12, 3)]
        example = tf.train.Example.FromString(messages[0])
        assert list(example.features.feature["x"].int64_list.value) == [5]
