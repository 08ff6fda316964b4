"""What a loader or a mixture gives, as tests compare it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline import Loader, Mixture
from ringfeed.pipeline.deliver.chunk_sizes import ChunkSizes

Samples = dict[str, npt.NDArray[Any]]


def loader_with(chunks: Mapping[str, int], url: str, **options: Any) -> Loader:
    """A loader some of whose `ChunkSizes` are others than its own."""

    class Sized(Loader):
        @property
        def _chunk_sizes(self) -> list[ChunkSizes]:
            return [replace(sizes, **chunks) for sizes in super()._chunk_sizes]

    return Sized(url, **options)


def read(loader: Loader | Mixture, epoch: int = 0, start_step: int = 0, stop_step: int | None = None) -> Samples:
    """Steps of an epoch as arrays [steps, local batch, ...]."""
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    for steps, columns in loader.chunks(epoch, start_step):
        for name, values in columns.items():
            array = np.asarray(values)
            parts.setdefault(name, []).append(array.reshape(steps, loader.local_batch_size, *array.shape[1:]))
    return {name: np.concatenate(arrays)[: stop_step and stop_step - start_step] for name, arrays in parts.items()}


def batches(loader: Loader, epoch: int = 0, start_step: int = 0) -> list[list[int]]:
    """The records of each of this rank's batches."""
    rows = [np.array(c["id"]).reshape(steps, -1) for steps, c in loader.chunks(epoch, start_step)]
    return np.concatenate(rows).tolist()
