"""What loaders and mixtures have in common: the batches of an epoch, for TensorFlow and for NumPy, from a step on."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..sharding.common.option_checks import boolean, integer, mapping
from ..sharding.errors import ConfigError, RingfeedError
from ..sharding.schema import Schema
from .decode.columns import Columns
from .decode.tfrecord_frames import join_frames
from .deliver.to_numpy import NumpyBatch, iterate_numpy
from .metrics.stage_counters import Counters
from .order.epoch_order import ORDER_VERSION, Geometry
from .order.sample_keys import sample_keys
from .pickling import remake
from .resume_state import check_state
from .select.sample_columns import ORIGIN, SAMPLE_KEY, WEIGHT, Origin
from .transforms.apply import Transform, apply_transform

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = [
    "BaseLoader",
]

_PREFETCH_BYTES = 16 << 20  # of decoded chunks that wait for a NumPy consumer
_TRANSFORMED = 2  # batches that are kept ready


class BaseLoader(ABC):
    """One rank's share of the global batches, epoch by epoch.

    Args:
        geometry: of an epoch.
        schema: of the features delivered.
        stored: that of the records on storage, in their order.
        fill: what stands for missing values where records are parsed last.
        seed: of the order.
        rank: of this process.
        world_size: processes.
        sample_keys: whether batches hold `SAMPLE_KEY`.

    Raises:
        ConfigError: there is no such rank.
    """

    def __init__(
        self,
        geometry: Geometry,
        schema: Schema,
        stored: Schema,
        fill: Mapping[str, Any],
        *,
        seed: int,
        rank: int,
        world_size: int,
        sample_keys: bool,
    ) -> None:
        self._geometry = geometry
        self._rank, self._world_size = integer("rank", rank), integer("world_size", world_size)
        self._slices = geometry.rank_slices(self._rank, self._world_size)
        self._schema = schema
        self._stored = stored
        self._fill = fill
        self._seed = integer("seed", seed)
        self._sample_keys = boolean("sample_keys", sample_keys)
        self._counters = Counters()
        self._make_dataset: Callable[[int, int, int], tf.data.Dataset] | None = None
        self._error: Exception | None = None  # that ended an epoch in TensorFlow

    def __reduce__(self) -> tuple[Any, ...]:
        return remake, (type(self), self.arguments, self.identity)

    @property
    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """By name, those that make the same one in another process, as far as this one has come to know."""

    @property
    @abstractmethod
    def identity(self) -> tuple[Any, ...]:
        """What tells whether it is the same there, beside the arguments."""

    @property
    def schema(self) -> Schema:
        """Of the features delivered."""
        return self._schema

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return self._geometry.steps

    @property
    def local_batch_size(self) -> int:
        """Samples of this rank in each batch, the same on every rank; where `sample_weight` is 0 they do not count."""
        return self._geometry.local_batch(self._world_size)

    @property
    @abstractmethod
    def undecoded(self) -> bool:
        """Whether `chunks` holds whole examples, for TensorFlow to parse, and not features."""

    @property
    def locates_features(self) -> bool:
        """Whether the features of `undecoded` examples can be found when their shard is opened, and need no parsing."""
        return False

    @abstractmethod
    def chunk_steps(self, local_batch: int) -> int:
        """Steps of so many samples that cross into TensorFlow at once."""

    @abstractmethod
    def large_steps(self, local_batch: int) -> int:
        """The same of `undecoded` examples so long that each had better cross by itself; 0 if they are not."""

    @abstractmethod
    def ready_batches(self, local_batch: int) -> int:
        """Batches of so many samples that TensorFlow keeps ready."""

    @abstractmethod
    def _gather_chunks(
        self, epoch: int, start_step: int, *, locate_features: bool, with_origins: bool
    ) -> Iterator[tuple[int, Columns]]:
        """Runs of steps of an epoch, without keys; undecoded examples where they lie, or what is `located` in them.

        If `with_origins`, with the column `ORIGIN`.
        """

    @abstractmethod
    def _origins(self, columns: Mapping[str, Any]) -> list[Origin]:
        """Of samples that were traced."""

    def epoch(
        self,
        epoch: int,
        start_step: int = 0,
        *,
        transform: Transform | Sequence[Transform] | None = None,
        num_parallel_calls: int | None = None,
        as_supervised: bool = False,
    ) -> tf.data.Dataset:
        """The batches of an epoch from a step on.

        Args:
            epoch: from 0; each has another order.
            start_step: in ``[0, steps_per_epoch]``; what comes before is not read.
            transform: function of each element, in TensorFlow operations, or several, one after the other.
            num_parallel_calls: batches that it works on at a time; by default one for each core.
            as_supervised: give ``(features, class_id)``, with padding ``(features, class_id, sample_weight)``, as
                `keras.Model.fit` takes them. The features are those but for the label, and what transforms added: a
                dict, or the one there is. Where they mixed samples, ``soft_label`` is in the place of `class_id`.

        Raises:
            ConfigError: there is no such step, no TensorFlow, or no label or feature for `as_supervised`; or the epoch
                or its steps exceed 64 bits.
        """
        if boolean("as_supervised", as_supervised) and self._stored.label is None:
            raise ConfigError(
                "as_supervised pairs features with the class of their label, and the dataset has no label; pair them "
                "by a transform, such as lambda batch: (batch['x'], batch['y'])"
            )
        try:
            from .deliver.to_tensorflow import supervised_pairs  # TensorFlow is needed from here on
        except ModuleNotFoundError as error:
            raise ConfigError(
                "epoch needs TensorFlow; install it with: pip install 'ringfeed[cpu]', or use numpy_epoch"
            ) from error
        epoch, start_step = self._checked(epoch, start_step)
        if epoch >= 1 << 63:
            raise ConfigError(f"epoch must be less than 2**63 for TensorFlow, got {epoch}")
        if self._make_dataset is None:
            self._make_dataset = self._dataset_maker()
        dataset = self._make_dataset(epoch, start_step, self.steps_per_epoch - start_step)
        dataset._ringfeed_loader = self  # which its iterators need
        if transform is not None:
            dataset, functions = apply_transform(dataset, transform, num_parallel_calls)
            dataset = self.explain_failures(dataset, functions, epoch, start_step).prefetch(_TRANSFORMED)
        return supervised_pairs(dataset, self.schema) if as_supervised else dataset

    def _dataset_maker(self) -> Callable[[int, int, int], tf.data.Dataset]:
        from .deliver.to_tensorflow import Delivery, dataset_maker

        delivery = Delivery(
            schema=self.schema,
            fill=self._fill,
            local_batch=self.local_batch_size,
            undecoded=self.undecoded and not self.locates_features,
            added=self._added(),
            large=self.large_steps(self.local_batch_size),
            single=self.chunk_steps(self.local_batch_size) == 1,
            prefetch=self.ready_batches(self.local_batch_size),
        )
        return dataset_maker(self._delivered, delivery)

    def _delivered(self, epoch: int, start_step: int) -> Iterator[tuple[int, Columns]]:
        """What `epoch` is made of; and an error that ends it is known."""
        self._error = None
        try:
            yield from self._chunks(epoch, start_step, locate_features=self.locates_features)
        except Exception as error:
            self._error = error
            raise

    def explain_failures(
        self, dataset: tf.data.Dataset, functions: Sequence[Transform], epoch: int, start_step: int
    ) -> tf.data.Dataset:
        """What functions made of the batches of an epoch, of which an error says what record a function fails on.

        Without features of bytes, in which images may be, it is left as it is.

        Args:
            dataset: that was mapped.
            functions: that were mapped over `epoch`, one after the other.
            epoch: of the batches.
            start_step: of the first.
        """
        if not any(feature.dtype == "binary" for feature in self.schema.features):
            return dataset
        from .transforms.failing_record import explain_failures

        this = weakref.ref(self)

        def explain(step: int) -> Exception:
            loader = this()
            assert loader is not None
            if loader._error is None:
                loader._error = loader._explained(functions, epoch, step)
            return loader._error

        return explain_failures(dataset, start_step, self.steps_per_epoch, explain)

    def _explained(self, functions: Sequence[Transform], epoch: int, step: int) -> RingfeedError:
        """The error of a batch that functions fail on, which is read once more."""
        from .transforms.failing_record import FailedBatch

        chunks = self._chunks(epoch, step, locate_features=False, with_origins=True)
        batches = iterate_numpy(
            ((steps, join_frames(columns)) for steps, columns in chunks),
            self._stored,
            self.schema,
            self._fill,
            counters=self._counters,
            prefetch_bytes=0,
        )
        try:
            batch = next(batches)
        except RingfeedError as error:
            return error
        finally:
            batches.close()
            chunks.close()
        names = [feature.name for feature in self.schema.features if feature.dtype == "binary"]
        failed = FailedBatch(
            epoch=epoch,
            step=step,
            origins=self._origins(batch),
            batch={name: values for name, values in batch.items() if name != ORIGIN},
            bytes_features=names,
            undeclared={name for name in names if not self._stored[name].is_image},
        )
        return failed.explain(functions)

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """Where an epoch stands after so many steps, on all ranks: small, and for `json.dumps`; see `resume`.

        Raises:
            ConfigError: there is no such step.
        """
        epoch, step = self._checked(epoch, step)
        return {"epoch": epoch, "step": step, **self._state(epoch), "order": ORDER_VERSION}

    def resume(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """The epoch and the step of a state, to go on with: ``loader.epoch(*loader.resume(state))``.

        Raises:
            ConfigError: it is the state of another dataset, or of options with which the batches would be others.
        """
        mapping("a state", state, "what `state` told")
        epoch: Any = state.get("epoch", 0)
        step: Any = state.get("step")
        own = self._state(self._checked(epoch)[0])
        check_state({"order": 1, **state}, {"epoch": epoch, "step": step, **own, "order": ORDER_VERSION})
        return self._checked(epoch, step)

    @abstractmethod
    def _state(self, epoch: int) -> dict[str, Any]:
        """What the batches from an epoch on follow from, beside its number."""

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Around what takes the batches of `epoch`: raises the loader's errors, such as `CorruptionError`, as they are.

        TensorFlow makes `tf.errors.UnknownError` of them, with the line of each, and its traceback, in its text.
        """
        self._error = None
        try:
            yield
        except Exception:
            if self._error is None:
                raise
            raise self._error from None

    def distributed_epoch(
        self,
        strategy: tf.distribute.Strategy,
        epoch: int,
        start_step: int = 0,
        *,
        transform: Transform | Sequence[Transform] | None = None,
        num_parallel_calls: int | None = None,
        as_supervised: bool = False,
    ) -> Any:
        """The same batches as a `tf.distribute.DistributedDataset`: each worker is a rank, whose replicas share it.

        Args:
            strategy: its workers are the ranks.
            epoch: as for `epoch`.
            start_step: as for `epoch`.
            transform: as for `epoch`; it is given the worker's whole batch.
            num_parallel_calls: as for `epoch`.
            as_supervised: as for `epoch`.

        Raises:
            ConfigError: as for `epoch`, or the strategy has other workers than there are ranks.
        """
        from .deliver.distributed import distribute

        batches = self.epoch(
            epoch, start_step, transform=transform, num_parallel_calls=num_parallel_calls, as_supervised=as_supervised
        )
        ranks = {"rank": self._rank, "world_size": self._world_size, "local_batch": self.local_batch_size}
        return distribute(batches, strategy, **ranks)

    def numpy_epoch(
        self, epoch: int, start_step: int = 0, *, prefetch_bytes: int = _PREFETCH_BYTES
    ) -> Generator[NumpyBatch, None, None]:
        """The batches of an epoch from a step on as NumPy arrays: what `epoch` gives, with no TensorFlow.

        A background thread works ahead. It ends when the iterator has ended, was closed, or is let go of.

        Args:
            epoch: as for `epoch`.
            start_step: as for `epoch`.
            prefetch_bytes: that may be ready and not yet taken; 0 for no thread.

        Yields:
            By feature, and ``class_id``: numbers as arrays of the feature's dtype, strings and bytes as arrays of
            `bytes` objects, features of variable length as `Ragged`, which is ``(values, row_lengths)``.

        Raises:
            ConfigError: there is no such step.
        """
        epoch, start_step = self._checked(epoch, start_step)
        return iterate_numpy(
            self.chunks(epoch, start_step),
            self._stored,
            self.schema,
            self._fill,
            counters=self._counters,
            prefetch_bytes=integer("prefetch_bytes", prefetch_bytes, 0),
        )

    def chunks(self, epoch: int, start_step: int = 0) -> Generator[tuple[int, Columns], None, None]:
        """Runs of steps of an epoch, as NumPy and Arrow columns: what `epoch` is made of, without TensorFlow.

        Yields:
            The number of steps, and columns of ``steps * local_batch_size`` rows, step after step.
        """
        for steps, columns in self._chunks(epoch, start_step, locate_features=False):
            yield steps, join_frames(columns)

    def _chunks(
        self, epoch: int, start_step: int, *, locate_features: bool, with_origins: bool = False
    ) -> Generator[tuple[int, Columns], None, None]:
        """`chunks`, with undecoded examples where they lie in their shards, or what is `located` in them.

        If `with_origins`, with the column `ORIGIN`.
        """
        epoch, start_step = self._checked(epoch, start_step)
        step = start_step
        for steps, columns in self._gather_chunks(
            epoch, start_step, locate_features=locate_features, with_origins=with_origins
        ):
            if self._sample_keys:
                columns = {**columns, SAMPLE_KEY: sample_keys(self._seed, epoch, self._positions(step, steps))}
            step += steps
            asked = time.perf_counter()
            yield steps, columns
            waited = time.perf_counter() - asked
            self._counters.add("deliver", items=steps * self.local_batch_size, wait=waited)

    @property
    def _streams(self) -> range:
        """Those of which this rank has a slice."""
        return range(self._slices[0].stream, self._slices[-1].stream + 1)

    def _positions(self, step: int, steps: int) -> npt.NDArray[np.int64]:
        """Where this rank's samples of a run of steps lie in the epoch's global order."""
        piece = self._geometry.piece
        places = np.concatenate([part.stream * piece + part.offsets() for part in self._slices])
        firsts = np.arange(step, step + steps, dtype=np.int64) * self._geometry.batch_size
        positions: npt.NDArray[np.int64] = np.add.outer(firsts, places).reshape(-1)
        return positions

    def _added(self) -> dict[str, npt.DTypeLike]:
        """The columns that batches hold beside features and classes, and the dtypes of one sample's entries."""
        added: dict[str, npt.DTypeLike] = {}
        if self._geometry.weighted(self._world_size):
            added[WEIGHT] = np.float32
        if self._sample_keys:
            added[SAMPLE_KEY] = np.dtype((np.int64, (2,)))
        return added

    def _checked(self, epoch: int, start_step: int = 0) -> tuple[int, int]:
        epoch, start_step = integer("epoch", epoch), integer("start_step", start_step)
        if epoch < 0 or not 0 <= start_step <= self.steps_per_epoch:
            raise ConfigError(
                f"an epoch has steps 0 to {self.steps_per_epoch}, got epoch {epoch}, start_step {start_step}"
            )
        return epoch, start_step
