"""Records whose columns follow from their own number."""

from pathlib import Path

import numpy as np
import pyarrow as pa

RECORDS = 1000
CLASSES = ("common", "middling", "rare")


def make_table(records: int) -> pa.Table:
    """Records whose every column follows from their number `id`."""
    ids = np.arange(records)
    labels = np.where(ids % 50 == 0, "rare", np.where(ids % 5 == 0, "middling", "common"))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 3).astype(np.float32)), 3)
    return pa.table({"id": pa.array(ids), "vector": vectors, "label": pa.array(labels)})


def numbered(table: pa.Table) -> pa.Table:
    """The same with an integer for the label: all records then share one layout."""
    codes = pa.array([CLASSES.index(value) for value in table.column("label").to_pylist()], pa.int64())
    return table.set_column(2, "label", codes)


def rewrite(file: Path, data: bytes) -> None:
    """Put another file in its place: a reader that has failed, or ended, may still have threads at what it mapped."""
    (file.parent / "rewritten").write_bytes(data)
    (file.parent / "rewritten").replace(file)
