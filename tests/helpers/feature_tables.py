"""Tables with features of every kind, for tests of the values that a loader delivers."""

import numpy as np
import pyarrow as pa

RECORDS = 60


def make_table() -> pa.Table:
    """All dtypes, fixed and variable shapes, with values that rounding would change."""
    n = np.arange(RECORDS)
    image = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(RECORDS * 6) % 256, pa.uint8()), 3)
    return pa.table(
        {
            "id": pa.array(n),
            "flag": pa.array(n % 3 == 0),
            "small": pa.array(n - 30, pa.int8()),
            "large": pa.array([2**64 - 1 - int(i) for i in n], pa.uint64()),
            "half": pa.array((n / 4).astype(np.float16)),
            "single": pa.array(n / 3, pa.float32()),
            "double": pa.array(n / 3, pa.float64()),
            "matrix": pa.FixedSizeListArray.from_arrays(image, 2),
            "label": pa.array(n % 2),
        }
    )


def make_variable_table() -> pa.Table:
    """`make_table` with features of variable length."""
    n = range(RECORDS)
    table = make_table().append_column("text", pa.array([f"é{'x' * (i % 5)}" for i in n]))
    table = table.append_column("raw", pa.array([bytes([i]) * (i % 4) for i in n], pa.binary()))
    table = table.append_column("ints", pa.array([list(range(-2, i % 5)) for i in n], pa.list_(pa.int16())))
    return table.append_column("doubles", pa.array([[0.1] * (i % 3) for i in n], pa.list_(pa.float64())))
