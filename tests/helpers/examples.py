"""Batches of any features for tests of `tf.train.Example`, and a golden message of TensorFlow's."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from ringfeed.sharding import Feature, Schema
from ringfeed.sharding.building.partitioning import widen_ranges
from ringfeed.sharding.formats.example_encode import RecordLayout, plan_layout

_INT_BOUNDS = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
_NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=0, max_size=200)


def _elements(dtype: str) -> st.SearchStrategy[Any]:
    if dtype == "bool":
        return st.booleans()
    if dtype in _INT_BOUNDS:
        low, high = _INT_BOUNDS[dtype]
        return st.integers(low, high) | st.sampled_from([low, high, 0])
    if dtype.startswith("float"):
        return st.floats(width=int(dtype[5:]), allow_nan=False)  # type: ignore[arg-type]
    return st.text(max_size=150) if dtype == "string" else st.binary(max_size=300)


@st.composite
def batches(draw: st.DrawFn, nulls: bool = True) -> tuple[Schema, pa.RecordBatch]:
    """Batches of one to five records with up to four features of any type and shape."""
    rows = draw(st.integers(1, 5))
    names = draw(st.lists(_NAMES, min_size=1, max_size=4, unique=True))
    features, columns = [], []
    for name in names:
        dtype = draw(st.sampled_from([*_INT_BOUNDS, "bool", "float16", "float32", "float64", "string", "binary"]))
        shape = draw(st.sampled_from([(), (3,), (2, 2), (None,)]))
        feature = Feature(name=name, dtype=dtype, shape=shape)
        value: st.SearchStrategy[Any] = _elements(dtype)
        if shape:
            sizes = {"min_size": 0, "max_size": 4} if feature.elements is None else dict.fromkeys(
                ("min_size", "max_size"), feature.elements
            )  # fmt: skip
            value = st.lists(value, **sizes)  # type: ignore[arg-type]
        if nulls and draw(st.booleans()):
            value = st.none() | value
        features.append(feature)
        values = draw(st.lists(value, min_size=rows, max_size=rows))
        columns.append(pa.array(values, feature.arrow_type))
    schema = Schema(features=tuple(features))
    return schema, pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


def layout_of(schema: Schema, batch: pa.RecordBatch) -> RecordLayout | None:
    """The fixed layout of a batch, or None if it has none."""
    ranges: dict[str, tuple[int, int]] = {}
    widen_ranges(ranges, batch, schema)
    return None if any(column.null_count for column in batch.columns) else plan_layout(schema, ranges)


def values_of(schema: Schema, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The records of a batch as `decode_example` returns them."""
    rows = batch.to_pylist()
    for row in rows:
        for feature in schema.features:
            if row[feature.name] is not None and feature.fixed_shape:
                row[feature.name] = np.reshape(np.array(row[feature.name], object), feature.fixed_shape).tolist()
    return rows


def golden_case() -> tuple[Schema, pa.RecordBatch]:
    """A record of every kind of list, whose message is `GOLDEN`."""
    schema = Schema(
        features=(
            Feature(name="a", dtype="float32", shape=(2,)),
            Feature(name="b", dtype="int64"),
            Feature(name="c", dtype="string"),
            Feature(name="d", dtype="int64", shape=(None,)),
        )
    )
    columns = [
        pa.array([[0.5, -2.0]], pa.list_(pa.float32(), 2)),
        pa.array([-7]),
        pa.array(["grün"]),
        pa.array([[1, 300, 2**40]], pa.list_(pa.int64())),
    ]
    return schema, pa.RecordBatch.from_arrays(columns, schema=schema.arrow)


# tf.train.Example(...).SerializeToString(deterministic=True) for golden_case; TensorFlow 2.21.0, 2026-11-21
GOLDEN = bytes.fromhex(
    "0a4c0a110a0161120c120a0a080000003f000000c00a130a0162120e1a0c0a0af9ffffffffffffffff010a0e0a016312090a070a056772c3bc6e0a120a0164120d1a0b0a0901ac02808080808020"
)
