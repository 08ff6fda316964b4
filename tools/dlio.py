"""A data loader plug-in of DLIO (`dlio-benchmark`), with which MLPerf Storage's workloads read ringfeed datasets.

    dlio_benchmark workload=resnet50_h100 ++workload.reader.data_loader_classname=ringfeed.tools.dlio.Loader \
        ++workload.reader.data_loader_sampler=iterative

DLIO is no dependency of ringfeed, and imports this module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ringfeed import pipeline
from ringfeed.sharding.errors import ConfigError

if TYPE_CHECKING:
    from dlio_benchmark.common.enumerations import DataLoaderType, FrameworkType
    from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
else:
    try:
        from dlio_benchmark.common.enumerations import DataLoaderType, FrameworkType
        from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
    except ModuleNotFoundError:
        BaseDataLoader = object  # so that this module can be imported; only DLIO makes a loader of it

__all__ = ["URL_VARIABLE", "Loader"]

URL_VARIABLE = "RINGFEED_DLIO_URL"
"""Environment variable with the URL of the dataset; without it, this is the folder `ringfeed` in DLIO's data folder."""


class Loader(BaseDataLoader):  # type: ignore[misc]
    """Feeds DLIO's emulated accelerators with the shuffled batches of a ringfeed dataset.

    DLIO's `reader.batch_size` is the batch of one accelerator, and `reader.read_threads` the number of shards read
    in parallel (the loader's `streams`), or the next smaller divisor of the batch size. Batches are dictionaries of
    tensors where DLIO's framework is TensorFlow, `reader.prefetch_size` of them made ahead, and of arrays elsewhere.

    >>> reader = Loader(FormatType.TFRECORD, DatasetType.TRAIN, epoch_number=0)  # doctest: +SKIP
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.TENSORFLOW)
        self._loader: pipeline.Loader | None = None

    def read(self) -> None:
        """Open the split that DLIO calls `train` or `valid`.

        Raises:
            ConfigError: the dataset has another number of records than DLIO's files.
        """
        args = self._args
        url = os.environ.get(URL_VARIABLE) or f"{args.data_folder}/ringfeed"
        split = self.dataset_type.value
        batch_size = self.batch_size * args.comm_size
        streams = max(n for n in range(1, max(args.read_threads, 1) + 1) if batch_size % n == 0)
        self._loader = pipeline.Loader(
            url, split=split, batch_size=batch_size, rank=args.my_rank, world_size=args.comm_size, seed=args.seed,
            streams=streams,
        )  # fmt: skip
        if self._loader.records != self.num_samples:
            raise ConfigError(
                f"{url}, split {split}: {self._loader.records} records, but DLIO's files have {self.num_samples}: "
                "convert them with shard-dataset build"
            )

    def next(self) -> Iterator[Any]:
        """The batches of the next epoch."""
        if self._loader is None:
            raise ConfigError("read() comes before next()")
        epoch = self.epoch_number
        self.epoch_number += 1  # before the first batch: DLIO drops this iterator at the last one
        if self._args.framework == FrameworkType.TENSORFLOW:
            yield from self._loader.epoch(epoch).prefetch(max(self._args.prefetch_size, 1))
        else:
            yield from self._loader.numpy_epoch(epoch)

    def finalize(self) -> None:
        """Do nothing: an epoch's threads end with its iterator."""
