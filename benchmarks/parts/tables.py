"""What the benchmarks read and write: 500,000 rows of 32 float32 in one feature, and an int64 label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, WIDTH = 500_000, 32
SHARES = (0.5, 0.2, 0.1, 0.1, 0.02, 0.02, 0.02, 0.02, 0.01, 0.01)  # of the ten classes


def write_source(path: Path) -> None:
    """Write the table as one Parquet file."""
    random = np.random.default_rng(0)
    values = random.random((ROWS, WIDTH), dtype=np.float32)
    labels = random.choice(len(SHARES), ROWS, p=SHARES)
    features = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), WIDTH)
    pq.write_table(pa.table({"features": features, "label": pa.array(labels)}), path)
