"""`TorchDataset`: the batches of a loader as PyTorch tensors, in the loader's order under any number of workers.

Needs no TensorFlow: its tests run in an environment of their own, without it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from ringfeed.sharding.common.validation import integer
from ringfeed.sharding.errors import ConfigError

from .base_loader import BaseLoader
from .deliver.to_numpy import Ragged
from .epochs_ahead import EpochsAhead
from .transforms.images import ImageTransform

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset, get_worker_info
else:
    try:
        from torch.utils.data import IterableDataset, get_worker_info
    except ModuleNotFoundError:
        IterableDataset = object  # so that this module can be imported; `TorchDataset` says what is missing

__all__ = ["TorchBatch", "TorchDataset"]

TorchBatch: TypeAlias = dict[str, Any]
"""A batch: tensors [local_batch_size, *shape], lists of `bytes` or `Ragged`, by feature."""
_KEY_BITS = 40
_INSTALL = "TorchDataset needs PyTorch; install it with: pip install torch (or 'ringfeed[torch]')"


class TorchDataset(IterableDataset):  # type: ignore[misc, unused-ignore]
    """An `IterableDataset` of a loader's batches, for ``DataLoader(dataset, batch_size=None, num_workers=N)``.

    The loader decides the batches and their order, whatever N is: each worker makes every N-th batch. Each also
    fetches the shards of them all, so on a remote store give the loader a ``cache`` folder, which workers share. The
    ranks of a distributed run are the loader's: ``Loader(url, ..., rank=rank, world_size=world_size)``.

    Every iteration reads the next epoch, from 0 on or from where `set_epoch` or `load_state_dict` say.

    Args:
        loader: a `Loader` or `Mixture`.
        transform: function of each batch of tensors, applied where the batch is made: in the workers. Or an
            `ImageTransform`, which decodes a feature of images as its `on_numpy` does.
        epochs: the epoch to stop before. If given, each process that makes batches begins the next epoch before an
            iteration ends, so that its first batch is ready; workers live on with ``persistent_workers``.

    Raises:
        ConfigError: PyTorch is not installed, or the loader is none.

    A batch holds by feature, and ``class_id``: numbers as tensors [local_batch_size, *shape] of the feature's dtype,
    strings and bytes as lists of `bytes`, features of variable length as `Ragged` ``(values, row_lengths)``.

    >>> from torch.utils.data import DataLoader  # doctest: +SKIP
    >>> batches = DataLoader(TorchDataset(loader), batch_size=None, num_workers=2)  # doctest: +SKIP
    """

    def __init__(
        self, loader: BaseLoader, transform: Callable[[TorchBatch], Any] | None = None, *, epochs: int = 0
    ) -> None:
        try:
            import torch
        except ModuleNotFoundError as error:
            raise ConfigError(_INSTALL) from error
        if not isinstance(loader, BaseLoader):
            raise ConfigError(f"TorchDataset takes a Loader or a Mixture, got {loader!r}")
        self.loader = loader
        self.transform = transform
        self.epochs = integer("epochs", epochs, 0)
        self._begin = (0, 0)  # epoch and step where `set_epoch` or `load_state_dict` say to begin
        self._place: tuple[int, int] | None = None  # of the iteration in this process
        self._iterations = 0  # in this process
        self._ahead = EpochsAhead()
        # Epoch and key of the latest iteration of all processes, in one word, which is written at once; key 0 for none.
        self._latest = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self.loader.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch; in a worker of a `DataLoader`, its share of them."""
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        epoch, key = self._next_epoch()
        self._latest[0] = (epoch << _KEY_BITS) + key
        self._iterations += 1
        step = self._first_step(epoch)
        self._place = epoch, step
        decode, then = (
            (self.transform.on_numpy, None) if isinstance(self.transform, ImageTransform) else (None, self.transform)
        )
        batches = self._ahead.epoch(
            partial(self.loader.numpy_epoch, epoch, step, transform=decode), self.loader, epoch, step,
            steps_per_epoch=len(self), stop_epoch=self.epochs,
        )  # fmt: skip
        for batch in islice(batches, number, None, workers):
            step = min(step + workers, len(self))
            self._place = epoch, step
            tensors = {name: _tensors(values) for name, values in batch.items()}
            yield tensors if then is None else then(tensors)

    def _next_epoch(self) -> tuple[int, int]:
        """The epoch of the iteration that comes next here, and the key of that iteration.

        It is the epoch that another worker of the same iteration has begun, or the one after the latest. All workers of
        an iteration have the same seed, and have begun equally many before it.
        """
        worker = get_worker_info()
        seed = 0 if worker is None else worker.seed - worker.id
        key = zlib.crc32(f"{seed} {self._iterations}".encode()) + 1
        latest, latest_key = divmod(int(self._latest), 1 << _KEY_BITS)
        return (latest if latest_key in (0, key) else latest + 1), key

    def _first_step(self, epoch: int) -> int:
        return self._begin[1] if epoch == self._begin[0] else 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration read an epoch from its first step on.

        Raises:
            ConfigError: there is no such epoch.
        """
        self._set_begin(integer("epoch", epoch), 0)

    def _set_begin(self, epoch: int, step: int) -> None:
        if not 0 <= epoch < 1 << (63 - _KEY_BITS):
            raise ConfigError(f"epoch must lie in [0, {1 << (63 - _KEY_BITS)}), got {epoch}")
        self._begin, self._place = (epoch, step), None
        self._latest[0] = epoch << _KEY_BITS

    def state_dict(self) -> dict[str, Any]:
        """The loader's state after the batches that this process has made so far; see `Loader.state`.

        In a worker it counts the batches of the other workers too: torchdata's `StatefulDataLoader` keeps the state of
        each worker, and resumes all.

        Raises:
            ConfigError: workers of a plain `DataLoader` made the batches, and only its consumer knows how many.
        """
        if self._place is not None:
            return self.loader.state(*self._place)
        if get_worker_info() is None and int(self._latest) % (1 << _KEY_BITS):
            raise ConfigError(
                "the batches were made by workers of a DataLoader; count its steps and save loader.state(epoch, step), "
                "or use torchdata's StatefulDataLoader, which saves the state of each worker"
            )
        epoch, _ = self._next_epoch()
        return self.loader.state(epoch, self._first_step(epoch))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin where `state_dict` or `Loader.state` was taken.

        Under ``persistent_workers``, call it before the first iteration.

        Raises:
            ConfigError: the state is of another dataset, or of options that give other batches.
        """
        epoch, step = self.loader.resume(state)
        if step == len(self) and get_worker_info() is None:  # a worker's state may be at the end before the others'
            epoch, step = epoch + 1, 0
        self._set_begin(epoch, step)


def _tensors(values: Any) -> Any:
    """NumPy values of a batch as PyTorch takes them."""
    import torch

    if isinstance(values, Ragged):
        return Ragged(_tensors(values.values), torch.from_numpy(values.row_lengths))
    return values.tolist() if values.dtype == object else torch.from_numpy(values)
