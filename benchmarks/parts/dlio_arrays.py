"""The records of DLIO's `.npz` files for `shard-dataset build --source dlio_arrays:records`: one array in each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def records() -> Iterator[dict[str, Any]]:
    """Bytes and shape of the array of each file in the folder $DLIO_ARRAYS, as DLIO's own TFRecords have them."""
    for path in sorted(Path(os.environ["DLIO_ARRAYS"]).glob("*.npz")):
        array = np.load(path)["x"]
        yield {"image": array.tobytes(), "shape": np.array(array.shape, np.int64)}
