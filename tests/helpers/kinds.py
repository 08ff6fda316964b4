"""A table with a column of every kind that a dataset can hold."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROWS = 24
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
RAGGED = {
    "float64": pa.float64(),
    "float32": pa.float32(),
    "int32": pa.int32(),
    "uint8": pa.uint8(),
    "string": pa.string(),
}


def image(number: int) -> bytes:
    pixels = np.full((2 + number % 3, 4, 3), number * 10, np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, ("png", "jpeg", "bmp")[number % 3])
    return file.getvalue()


def gapped(column: pa.Array) -> pa.Array:
    """The column with every third value missing."""
    return column.take(pa.array([None if i % 3 == 0 else i for i in range(len(column))]))


def columns() -> dict[str, pa.Array]:
    rng = np.random.default_rng(0)
    reals = rng.normal(size=(ROWS, 6))
    reals[0] = [np.nan, np.inf, -0.0, 5e-324, 1.7e308, 0.1]
    flags = pa.array(rng.random(ROWS) < 0.5)
    texts = pa.array(["", "é", "\0x"] * (ROWS // 3))
    made = {f"scalar {t}": pa.array([np.iinfo(t).min, np.iinfo(t).max] * (ROWS // 2), t) for t in INTEGERS}
    made |= {
        "scalar bool": flags,
        "scalar string": texts,
        "scalar binary": pa.array([bytes([i, 0, 255]) for i in range(ROWS)]),
        "scalar float64": pa.array(reals[:, 0]),
        "scalar float32": pa.array(rng.normal(size=ROWS).astype(np.float32)),
        "scalar float16": pa.array(rng.normal(size=ROWS).astype(np.float16)),
        "tensor float64": pa.FixedShapeTensorArray.from_numpy_ndarray(reals.reshape(ROWS, 2, 3)),
        "tensor float32": pa.FixedShapeTensorArray.from_numpy_ndarray(rng.normal(size=(ROWS, 2, 2)).astype(np.float32)),
        "tensor uint8": pa.FixedShapeTensorArray.from_numpy_ndarray(rng.integers(0, 256, (ROWS, 3, 2), np.uint8)),
        "tensor string": pa.FixedSizeListArray.from_arrays(pa.array([f"t{i}" for i in range(2 * ROWS)]), 2),
        "a/slash": pa.array(range(ROWS)),
    }
    for name, kind in RAGGED.items():
        word = str if name == "string" else int
        made[f"ragged {name}"] = pa.array([[word(j) for j in range(i % 4)] for i in range(ROWS)], pa.list_(kind))
    made |= {f"missing {name}": gapped(made[f"scalar {name}"]) for name in ("bool", "string", "float64", "uint8")}
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(reals[:, :2].reshape(-1)), 2)
    counts = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * ROWS, dtype=np.int16)), 2)
    made |= {"missing vector": gapped(vectors), "missing counts": gapped(counts)}
    return made


def plain(value: Any) -> Any:
    """As Python values whose `repr` is equal only if every bit is: texts as their bytes, tensors as lists."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    return value.encode() if isinstance(value, str) else value


def values_of(name: str) -> list[Any]:
    """The values of a column of `columns()` in the order of ``id``, tensors as nested lists."""
    column = columns()[name]
    tensors = isinstance(column, pa.ExtensionArray)
    return [tensor.tolist() for tensor in column.to_numpy_ndarray()] if tensors else column.to_pylist()


def write_kinds(path: Path) -> str:
    """All columns, an ``id``, images, and a ``label`` of two classes, as a Parquet file; returns its path."""
    table = pa.table({"id": pa.array(range(ROWS)), **columns(), "label": [("odd", "even")[i % 2] for i in range(ROWS)]})
    encoded = pa.field("image", pa.binary(), metadata={"encoding": "image"})
    pq.write_table(table.append_column(encoded, [[image(i) for i in range(ROWS)]]), path)
    return str(path)
