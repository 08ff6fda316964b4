"""Features from Arrow schemas, and back."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ringfeed.sharding import Feature, Schema, SourceError


def feature_of(kind: pa.DataType) -> Feature:
    return Feature.from_arrow(pa.field("x", kind))


@pytest.mark.parametrize(
    ("kind", "dtype", "shape", "example"),
    [
        (pa.bool_(), "bool", (), "int64"),
        (pa.uint64(), "uint64", (), "int64"),
        (pa.uint8(), "uint8", (), "int64"),
        (pa.float16(), "float16", (), "float"),
        (pa.float64(), "float64", (), "raw"),
        (pa.large_string(), "string", (), "bytes"),
        (pa.dictionary(pa.int32(), pa.string()), "string", (), "bytes"),
        (pa.binary(16), "binary", (), "bytes"),
        (pa.timestamp("us"), "int64", (), "int64"),
        (pa.date32(), "int32", (), "int64"),
        (pa.list_(pa.int32()), "int32", (None,), "int64"),
        (pa.list_(pa.float32(), 8), "float32", (8,), "float"),
        (pa.list_(pa.list_(pa.uint8(), 3), 2), "uint8", (2, 3), "raw"),
        (pa.fixed_shape_tensor(pa.int16(), (4, 5)), "int16", (4, 5), "int64"),
    ],
)
def test_the_feature_of_a_type(kind: pa.DataType, dtype: str, shape: tuple[Any, ...], example: str) -> None:
    feature = feature_of(kind)
    assert (feature.dtype, feature.shape, feature.example_kind) == (dtype, shape, example)
    assert Feature.from_json(feature.to_json()) == feature
    schema = Schema(features=(feature,))
    assert Schema.from_arrow(schema.arrow, None).features[0].shape == shape  # shapes survive our own Parquet files


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal128(5, 2),
        pa.struct([("a", pa.int32())]),
        pa.list_(pa.list_(pa.int32())),
        pa.null(),
        pa.map_(pa.string(), pa.int32()),
        pa.list_(pa.int32(), 0),
    ],
)
def test_a_type_without_a_feature_is_refused_by_the_columns_name(kind: pa.DataType) -> None:
    with pytest.raises(SourceError, match=r"column 'x' has type .* no feature can hold"):
        feature_of(kind)


def test_a_foreign_shape_that_does_not_fit_is_ignored() -> None:
    field = pa.field("x", pa.list_(pa.int32(), 6), metadata={"shape": "(2, 4)"})
    assert Feature.from_arrow(field).shape == (6,)
    assert Feature.from_arrow(field.with_metadata({"shape": "2,4"})).shape == (6,)
    assert Feature.from_arrow(field.with_metadata({"shape": "2,3"})).shape == (2, 3)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["a", None, "b"]).dictionary_encode(), ["a", None, "b"]),
        (pa.array([1, None], pa.timestamp("s")), [1, None]),
        (pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int32(), 2), 1)), [[1, 2], [3, 4]]),
        (pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8).reshape(2, 2, 2)), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (pa.array([[[1], [2]], None, [[3], [None]]], pa.list_(pa.list_(pa.int8(), 1), 2)), [[1, 2], None, [3, None]]),
        (
            pa.array([None, [[[1], [2]]], [[[3], [4]]]], pa.list_(pa.list_(pa.list_(pa.int8(), 1), 2), 1)).slice(1),
            [[1, 2], [3, 4]],
        ),
    ],
)
def test_columns_conform_without_losing_a_value(column: pa.Array, expected: list[Any]) -> None:
    feature = feature_of(column.type)
    conformed = feature.conform(column)
    assert conformed.type == feature.arrow_type
    assert conformed.to_pylist() == expected


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (1, 2, 0)])
def test_permuted_tensors_are_read_in_the_order_of_their_axes(order: tuple[int, int, int]) -> None:
    kind = pa.fixed_shape_tensor(pa.int16(), (2, 3, 4), permutation=order)
    lists = pa.array([None, list(range(24)), None, [None, *range(23)]], pa.list_(pa.int16(), 24)).slice(1)
    column = pa.FixedShapeTensorArray.from_storage(kind, lists)
    feature = feature_of(kind)
    whole = np.arange(24).reshape(2, 3, 4).transpose(order)  # pyarrow 26's own to_numpy_ndarray takes wrong strides
    assert feature.shape == whole.shape
    first, missing, holed = feature.conform(column).to_pylist()
    assert first == whole.reshape(-1).tolist()
    assert missing is None
    assert [None if value == 0 else value - 1 for value in first] == holed


@pytest.mark.parametrize(
    ("kind", "values", "dtype"),
    [
        (pa.uuid(), [b"0123456789abcdef", None], "binary"),
        (pa.json_(), ['{"a": 1}', None], "string"),
        (pa.json_(pa.large_string()), ["[]", None], "string"),
        (pa.bool8(), [1, 0, None], "int8"),
    ],
)
def test_extension_types_count_as_their_storage(kind: pa.DataType, values: list[Any], dtype: str) -> None:
    column = pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    feature = feature_of(kind)
    assert (feature.dtype, feature.shape) == (dtype, ())
    assert feature.conform(column).equals(pa.array(values, feature.arrow_type))
    assert feature.conform(column.slice(1)).to_pylist() == values[1:]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1], pa.int32()), column)
    assert feature_of(lists.type).conform(lists).to_pylist() == [values[:1], []]
    pairs = pa.FixedSizeListArray.from_arrays(column.slice(0, 2), 2)
    assert feature_of(pairs.type).conform(pairs).to_pylist() == [values[:2]]


@pytest.mark.parametrize("kind", [pa.date32(), pa.time64("us"), pa.timestamp("ns", "UTC"), pa.duration("ms")])
def test_lists_of_times_conform_without_losing_a_value(kind: pa.DataType) -> None:
    whole = pa.int32() if kind.bit_width == 32 else pa.int64()
    ragged = pa.array([[9], [1, -2], None, []], pa.list_(whole))
    vectors = pa.array([[9, 9], [1, -2], None], pa.list_(whole, 2))
    for column, timed in ((ragged, pa.list_(kind)), (ragged, pa.large_list(kind)), (vectors, pa.list_(kind, 2))):
        feature = feature_of(timed)
        assert feature.logical == str(kind)
        assert feature.conform(column.cast(timed).slice(1)).to_pylist() == column.to_pylist()[1:]


def test_a_tensor_missing_within_a_tensor_has_nulls_for_elements() -> None:
    column = pa.array([[[1, 2], None], None, [[3, None], [5, 6]]], pa.list_(pa.list_(pa.int32(), 2), 2))
    found = feature_of(column.type).conform(column)
    assert found.to_pylist() == [[1, 2, None, None], None, [3, None, 5, 6]]
    assert feature_of(column.type).conform(column.slice(1)).to_pylist() == found.to_pylist()[1:]


def test_an_unknown_label_names_a_close_column() -> None:
    with pytest.raises(SourceError, match=r"no label column 'lable'; did you mean 'label'\? The columns are: x, label"):
        Schema.from_arrow(pa.schema([("x", pa.decimal128(3, 1)), ("label", pa.string())]), "lable")


def test_columns_of_one_name_are_refused() -> None:
    with pytest.raises(SourceError, match="must differ, got 'x' more than once"):
        Schema.from_arrow(pa.schema([("x", pa.int32()), ("x", pa.int64())]), None)


def test_json_keeps_the_label() -> None:
    schema = Schema(features=(Feature(name="x", dtype="int8"), Feature(name="ü ,", dtype="string")), label="ü ,")
    assert Schema.from_json(schema.to_json()) == schema


def test_too_many_columns_are_refused_at_once() -> None:
    wide = pa.schema([pa.field(str(number), pa.float32()) for number in range(40_000)])
    with pytest.raises(SourceError, match="a record has 40,000 columns, at most 32,768 are possible; put numbers"):
        Schema.from_arrow(wide, None)
