"""A program for a test: reads datasets where no TensorFlow can be imported, and prints digests of their batches."""

import hashlib
import importlib.abc
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline import Loader, Ragged

SEED, BATCH_SIZE, EPOCH, START_STEP = 3, 12, 1, 1


class Refuse(importlib.abc.MetaPathFinder):
    """Stands for an environment without TensorFlow."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Refuse to import it."""
        if name.partition(".")[0] in ("tensorflow", "keras"):
            raise ModuleNotFoundError(f"{name} is not installed", name=name)


def digest(parts: Sequence[npt.NDArray[Any]]) -> str:
    """Of the dtypes, shapes and values of arrays."""
    state = hashlib.sha256()
    for part in parts:
        values = list(part.reshape(-1)) if part.dtype == object else part.tobytes()
        state.update(repr((str(part.dtype), part.shape, values)).encode())
    return state.hexdigest()


def parts_of(value: Any) -> list[npt.NDArray[Any]]:
    """The arrays that a feature of a batch is made of."""
    return [value.values, np.asarray(value.row_lengths)] if isinstance(value, Ragged) else [value]


def main(urls: Sequence[str]) -> None:
    """Print the digest of each feature of each batch of each dataset."""
    sys.meta_path.insert(0, Refuse())
    digests = {
        url: [
            {name: digest(parts_of(value)) for name, value in batch.items()}
            for batch in Loader(url, batch_size=BATCH_SIZE, seed=SEED).numpy_epoch(EPOCH, START_STEP)
        ]
        for url in urls
    }
    assert "tensorflow" not in sys.modules
    print(json.dumps(digests))


if __name__ == "__main__":
    main(sys.argv[1:])
