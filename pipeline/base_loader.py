"""The base of `Loader` and `Mixture`: batches of an epoch from any step on, for TensorFlow and for NumPy.

Tested in tests/pipeline/test_loader.py and tests/pipeline/test_iteration.py.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.common.validation import boolean, integer, mapping
from ringfeed.sharding.errors import ConfigError, RingfeedError
from ringfeed.sharding.schema import Schema

from .decode.columns import Columns
from .decode.tfrecord_frames import join_frames
from .deliver.chunk_sizes import ChunkSizes
from .deliver.to_numpy import NumpyBatch, iterate_numpy
from .loader_options import LoaderOptions, MixtureOptions
from .metrics.stage_counters import Counters
from .order.epoch_order import ORDER_VERSION, PASSES_VERSION, Geometry
from .resume_state import check_state, remake
from .select.sample_columns import ORIGIN, SAMPLE_KEY, WEIGHT, Origin, mask_name, sample_keys
from .transforms.apply import Transform, apply_transform

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Self

_PREFETCH_BYTES = 16 << 20  # decoded batches that wait for a NumPy consumer
_TRANSFORMED_BATCHES = 4  # kept ready behind a transform
_NO_INDEX = (
    "a loader has no batch by index: iterate over it, or for PyTorch write "
    "DataLoader(ringfeed.pipeline.torch.TorchDataset(loader), batch_size=None); single records are loader.sample(n)"
)
_NO_ARRAY = (
    "a loader is not an array; for Keras use model.fit(loader.keras(epochs=N), epochs=N, steps_per_epoch=len(loader), "
    "shuffle=False), for NumPy loader.numpy_epoch(epoch)"
)


class _Reading:
    """One reading of epochs by TensorFlow, which makes errors of its own of all; keeps the one that ended it."""

    def __init__(self, loader: BaseLoader, epochs: int = 1) -> None:
        self.loader, self.epochs = loader, epochs
        self.error: Exception | None = None

    def chunks(self, epoch: int, start_step: int) -> Iterator[tuple[int, Columns]]:
        """The chunks of the epochs, from a step of the first one on."""
        self.error = None
        located = self.loader.locates_features
        try:
            yield from self.loader._chunks(epoch, start_step, self.epochs, locate_features=located)
        except Exception as error:
            self.error = error
            raise


@contextmanager
def _own_errors(error_of_reading: Callable[[], Exception | None]) -> Iterator[None]:
    """Raise the error that was found in place of the body's."""
    try:
        yield
    except Exception:
        if (error := error_of_reading()) is None:
            raise
        raise error from None


class BaseLoader(ABC):
    """One rank's share of the global batches, epoch by epoch.

    Args:
        options: seed, rank, world size and sample keys.
        geometry: how an epoch is cut into batches.
        schema: the features to deliver.
        stored: the schema of the stored records.
        fill: value for missing values, by feature.

    Attributes:
        fill: as given.

    Raises:
        ConfigError: there is no such rank.
    """

    def __init__(
        self,
        options: LoaderOptions | MixtureOptions,
        geometry: Geometry,
        schema: Schema,
        stored: Schema,
        fill: Mapping[str, Any],
    ) -> None:
        self._seed, self._sample_keys = options.seed, options.sample_keys
        self._rank, self._world_size = options.rank, options.world_size
        self._geometry = geometry
        self._slices = geometry.rank_slices(self._rank, self._world_size)
        self._schema = schema
        self._stored = stored
        self.fill = fill
        self._counters = Counters()
        self._make_dataset: Callable[[Callable[..., Any]], Callable[[int, int, int], tf.data.Dataset]] | None = None
        self._readings = weakref.WeakSet[_Reading]()  # those that TensorFlow has begun, or may begin
        self._place = self._next = (0, 0)  # epoch and step: of the running iteration, and where the next one begins

    def __reduce__(self) -> tuple[Any, ...]:
        place = {"_place": self._place, "_next": self._next, "_slices": self._slices}
        return remake, (type(self), self.arguments, self.identity), place

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self._describe()}: {self.steps_per_epoch:,} steps an epoch, global batches of "
            f"{self._geometry.batch_size:,} samples, rank {self._rank} of {self._world_size}>"
        )

    @abstractmethod
    def _describe(self) -> str:
        """What the loader reads, without secrets, for `repr`."""

    def __len__(self) -> int:
        """Steps in an epoch."""
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The `batches` of one epoch: of epoch 0 the first time, then of epoch 1, and so on.

        `state_dict` says where the iteration is; after `load_state_dict` the next one begins there.
        """
        epoch, step = self._next
        if step == self.steps_per_epoch:
            epoch, step = epoch + 1, 0
        self._place, self._next = (epoch, step), (epoch + 1, 0)
        for batch in self.batches(epoch, step):
            step += 1
            self._place = (epoch, step)
            yield batch

    def __getitem__(self, index: object) -> Any:
        """Refuse indices, which PyTorch's ``DataLoader(loader)`` asks for: says what to write instead."""
        raise ConfigError(_NO_INDEX)

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Refuse to be an array, as which Keras takes what has this method."""
        raise ConfigError(_NO_ARRAY)

    @property
    def shape(self) -> Any:
        """What ``model.fit(loader)`` asks for first: says how to fit."""
        raise AttributeError(_NO_ARRAY)

    @property
    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments that make an equal loader in another process, with the shards in quarantine by now."""

    @property
    @abstractmethod
    def identity(self) -> tuple[Any, ...]:
        """What must be equal there, apart from the arguments, for the batches to be the same."""

    @property
    def schema(self) -> Schema:
        """The schema of the features delivered."""
        return self._schema

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return self._geometry.steps

    @property
    def local_batch_size(self) -> int:
        """Samples of this rank in each batch, including those of `sample_weight` 0.

        The same on every rank, but for those of `with_share`.
        """
        return sum(part.width for part in self._slices)

    @property
    def order_version(self) -> int:
        """The version of the order of samples, which states and checkpoints record."""
        return PASSES_VERSION if self._continues else ORDER_VERSION

    @property
    @abstractmethod
    def _continues(self) -> bool:
        """Whether an epoch goes on from the one before."""

    @property
    def streams(self) -> int:
        """Streams that a global batch is drawn from, of all ranks together."""
        return self._geometry.streams

    @property
    @abstractmethod
    def masks(self) -> tuple[str, ...]:
        """The features whose missing values are marked."""

    @property
    @abstractmethod
    def undecoded(self) -> bool:
        """Whether `chunks` yields whole examples, for TensorFlow to parse, and not features."""

    @property
    def locates_features(self) -> bool:
        """Whether features of `undecoded` examples are located when a shard is opened, not by TensorFlow."""
        return False

    @property
    @abstractmethod
    def _chunk_sizes(self) -> Sequence[ChunkSizes]:
        """The sizes that suit the records of each dataset; the smallest apply."""

    @property
    def chunk_steps(self) -> int:
        """Steps of a chunk, which crosses into TensorFlow at once."""
        return min(sizes.chunk_steps(self.local_batch_size) for sizes in self._chunk_sizes)

    @abstractmethod
    def _gather_chunks(
        self, epochs: range, start_step: int, *, locate_features: bool, with_origins: bool
    ) -> Iterator[tuple[int, Columns]]:
        """Chunks of epochs, without sample keys. No chunk holds steps of two epochs.

        Args:
            epochs: numbers of the epochs.
            start_step: first step of the first epoch.
            locate_features: yield the located features of undecoded examples, not the examples.
            with_origins: add the column `ORIGIN`.

        Yields:
            As `chunks`, with strings and bytes still in the memory of their shards.
        """

    @abstractmethod
    def _origins(self, columns: Mapping[str, Any]) -> list[Origin]:
        """Where the samples of columns with `ORIGIN` are stored."""

    def epoch(
        self,
        epoch: int,
        start_step: int = 0,
        *,
        transform: Transform | Sequence[Transform] | None = None,
        num_parallel_calls: int | None = None,
        as_supervised: bool = False,
    ) -> tf.data.Dataset:
        """The batches of an epoch from a step on, as a `tf.data.Dataset`.

        Args:
            epoch: number of the epoch, from 0; each has an order of its own.
            start_step: in ``[0, steps_per_epoch]``; earlier steps are not read.
            transform: function of each element, in TensorFlow operations, or several to apply in turn.
            num_parallel_calls: batches to transform at a time; default: one for each core, or one alone under
                `tf.config.experimental.enable_op_determinism`.
            as_supervised: yield ``(features, class_id)`` as `keras.Model.fit` takes them; with padding ``(features,
                class_id, sample_weight)``. Features are all but the label, and what transforms added: a dict, or the
                tensor itself if there is only one. Where a transform mixed samples, ``soft_label`` replaces `class_id`.

        Raises:
            ConfigError: there is no such step, no TensorFlow, or no label or feature for `as_supervised`; or the epoch
                or its steps exceed 64 bits.
        """
        return self._epochs(
            _Reading(self), epoch, start_step,
            transform=transform, num_parallel_calls=num_parallel_calls, as_supervised=as_supervised,
        )  # fmt: skip

    def batches(
        self,
        epoch: int,
        start_step: int = 0,
        *,
        epochs: int = 1,
        transform: Transform | Sequence[Transform] | None = None,
        num_parallel_calls: int | None = None,
    ) -> Generator[Any, None, None]:
        """The elements of `epoch` one by one, for a loop in Python, with the loader's own errors.

        Args:
            epoch, start_step, transform, num_parallel_calls: as for `epoch`.
            epochs: how many epochs to read, one after another. Each is begun while the last one is read, so that its
                first batch is ready when the last one ends.

        Raises:
            ConfigError: as for `epoch`, from the first element on.
            RingfeedError: a shard cannot be read, or a transform fails on a record; TensorFlow would make a
                `tf.errors.UnknownError` of it.
        """
        reading = _Reading(self, integer("epochs", epochs, 1))
        options: dict[str, Any] = {"transform": transform, "num_parallel_calls": num_parallel_calls}
        with _own_errors(lambda: reading.error):
            yield from self._epochs(reading, epoch, start_step, **options, as_supervised=False)

    def _epochs(
        self,
        reading: _Reading,
        epoch: int,
        start_step: int,
        *,
        transform: Transform | Sequence[Transform] | None,
        num_parallel_calls: int | None,
        as_supervised: bool,
    ) -> tf.data.Dataset:
        """`epoch`, and the epochs after it, as many as the reading reads."""
        epochs = reading.epochs
        if boolean("as_supervised", as_supervised) and self._stored.label is None:
            raise ConfigError(
                "as_supervised pairs features with the class of their label, and the dataset has no label; pair them "
                "by a transform, such as lambda batch: (batch['x'], batch['y'])"
            )
        try:
            from .deliver.to_tensorflow import supervised_pairs  # needs TensorFlow
        except ModuleNotFoundError as error:
            raise ConfigError(
                "epoch needs TensorFlow; install it with: pip install 'ringfeed[cpu]', or use numpy_epoch"
            ) from error
        epoch, start_step = self._checked(epoch, start_step)
        if epoch + epochs > 1 << 63:
            raise ConfigError(f"epoch must be less than 2**63 for TensorFlow, got {epoch + epochs - 1}")
        if self._make_dataset is None:
            self._make_dataset = self._dataset_maker()
        dataset = self._make_dataset(reading.chunks)(epoch, start_step, epochs * self.steps_per_epoch - start_step)
        dataset._ringfeed_reading = reading  # keeps it and the loader alive for the dataset's iterators
        self._readings.add(reading)
        if transform is not None:
            dataset, functions = apply_transform(dataset, transform, num_parallel_calls)
            dataset = self._watched(reading, dataset, functions, epoch, start_step)
            dataset = dataset.prefetch(_TRANSFORMED_BATCHES)
        return supervised_pairs(dataset, self.schema) if as_supervised else dataset

    def keras(
        self,
        epochs: int,
        initial_epoch: int = 0,
        *,
        transform: Transform | Sequence[Transform] | None = None,
        num_parallel_calls: int | None = None,
    ) -> tf.data.Dataset:
        """The batches of several epochs, each in an order of its own, for one call of `keras.Model.fit`.

        ``model.fit(loader.keras(epochs=5), epochs=5, steps_per_epoch=len(loader), shuffle=False)``; without
        `steps_per_epoch`, Keras takes all of them for one epoch.

        Args:
            epochs: as `fit` takes it: the epoch to stop before.
            initial_epoch: the epoch to begin with.
            transform, num_parallel_calls: as for `epoch`.

        Returns:
            As `epoch` with ``as_supervised=True``.

        Raises:
            ConfigError: as for `epoch`, or there is no epoch to read.
        """
        epochs, initial_epoch = integer("epochs", epochs), integer("initial_epoch", initial_epoch)
        if not 0 <= initial_epoch < epochs:
            raise ConfigError(f"epochs must be more than initial_epoch, got epochs {epochs}, initial {initial_epoch}")
        return self._epochs(
            _Reading(self, epochs - initial_epoch), initial_epoch, 0,
            transform=transform, num_parallel_calls=num_parallel_calls, as_supervised=True,
        )  # fmt: skip

    def _dataset_maker(self) -> Callable[[Callable[..., Any]], Callable[[int, int, int], tf.data.Dataset]]:
        from .deliver.chunk_encoding import Delivery
        from .deliver.to_tensorflow import dataset_maker

        local_batch = self.local_batch_size
        delivery = Delivery(
            schema=self.schema,
            fill=self.fill,
            local_batch=local_batch,
            undecoded=self.undecoded and not self.locates_features,
            added=self._added(),
            large=min(sizes.large_steps(local_batch) for sizes in self._chunk_sizes),
            single=self.chunk_steps == 1,
            prefetch=min(sizes.ready_batches(local_batch) for sizes in self._chunk_sizes),
        )
        return dataset_maker(delivery)

    def _watched(
        self, reading: _Reading, dataset: tf.data.Dataset, functions: Sequence[Transform], epoch: int, start_step: int
    ) -> tf.data.Dataset:
        """A transformed dataset whose errors name the record that a transform fails on.

        Without features of bytes, which may be images, the dataset is returned as it is.

        Args:
            reading: reads them; gets the error.
            dataset: the batches of an epoch or several, mapped.
            functions: the transforms that were mapped, in order.
            epoch: number of the first epoch.
            start_step: step of the first batch.
        """
        if not any(feature.dtype == "binary" for feature in self.schema.features):
            return dataset
        from .transforms.failing_record import explain_failures

        this = weakref.ref(reading)

        def explain(step: int) -> Exception:
            reading = this()
            assert reading is not None
            if reading.error is None:
                later, own_step = divmod(step, reading.loader.steps_per_epoch)
                reading.error = reading.loader._explained(functions, epoch + later, own_step)
            return reading.error

        return explain_failures(dataset, start_step, reading.epochs * self.steps_per_epoch, explain)

    def _explained(self, functions: Sequence[Transform], epoch: int, step: int) -> RingfeedError:
        """The error for a batch that a transform fails on; reads the batch again."""
        from .transforms.failing_record import FailedBatch

        try:
            batch, origins = self.batch_with_origins(epoch, step)
        except RingfeedError as error:
            return error
        names = [feature.name for feature in self.schema.features if feature.dtype == "binary"]
        failed = FailedBatch(
            epoch=epoch,
            step=step,
            origins=origins,
            batch=batch,
            bytes_features=names,
            undeclared={name for name in names if not self._stored[name].is_image},
        )
        return failed.explain([getattr(function, "python_function", function) for function in functions])  # untraced

    def batch_with_origins(self, epoch: int, step: int) -> tuple[NumpyBatch, list[Origin]]:
        """One batch of an epoch, as `numpy_epoch` yields it, and where each of its samples is stored.

        Raises:
            ConfigError: there is no such step.
            RingfeedError: it cannot be read.
        """
        chunks = self._chunks(epoch, step, locate_features=False, with_origins=True)
        batches = self._as_numpy(chunks, 0)
        try:
            batch = next(batches)
        finally:
            batches.close()
            chunks.close()
        return {name: values for name, values in batch.items() if name != ORIGIN}, self._origins(batch)

    def origins(self, epoch: int, start_step: int = 0) -> Iterator[tuple[int, list[Origin]]]:
        """Where each of this rank's samples is stored, step after step of an epoch.

        Yields:
            The number of a step, and an `Origin` for each of its samples, in the order of the batch.
        """
        step, width = start_step, self.local_batch_size
        for steps, columns in self._chunks(epoch, start_step, locate_features=False, with_origins=True):
            samples = self._origins(columns)
            for place in range(steps):
                yield step, samples[place * width : (place + 1) * width]
                step += 1

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """The state of an epoch after `step` steps, on all ranks: small, and fit for `json.dumps`. See `resume`.

        Raises:
            ConfigError: there is no such step.
        """
        epoch, step = self._checked(epoch, step)
        return {"epoch": epoch, "step": step, **self._state(epoch), "order": self.order_version}

    def resume(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """The epoch and step to resume from: ``loader.epoch(*loader.resume(state))``.

        Raises:
            ConfigError: the state is of another dataset, or of options that give other batches.
        """
        mapping("a state", state, "what `state` returned")
        epoch: Any = state.get("epoch", 0)
        step: Any = state.get("step")
        own = self._state(self._checked(epoch)[0])
        expected = {"epoch": epoch, "step": step, **own, "order": self.order_version}
        check_state({"order": 1, **state}, expected)
        return self._checked(epoch, step)

    def state_dict(self) -> dict[str, Any]:
        """The `state` after the batches that iterating over the loader has yielded so far, as PyTorch names it."""
        return self.state(*self._place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration over the loader where `state_dict` or `state` was taken.

        Raises:
            ConfigError: as for `resume`.
        """
        self._place = self._next = self.resume(state)

    @abstractmethod
    def _state(self, epoch: int) -> dict[str, Any]:
        """What determines the batches from an epoch on, apart from its number."""

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Raise the loader's own errors, such as `CorruptionError`, from a body like ``model.fit(loader.keras(2))``.

        Outside of it, TensorFlow turns them into a `tf.errors.UnknownError` that quotes their text. A loop over
        `batches` needs no such body.
        """
        for reading in list(self._readings):
            reading.error = None
        with _own_errors(lambda: next((each.error for each in list(self._readings) if each.error), None)):
            yield

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
        """The batches of `epoch` as a `tf.distribute.DistributedDataset`.

        Each worker is a rank, and its replicas share the rank's batches.

        Args:
            strategy: the strategy, with a worker for each rank.
            epoch, start_step: as for `epoch`.
            transform: as for `epoch`; receives the worker's whole batch.
            num_parallel_calls, as_supervised: as for `epoch`.

        Raises:
            ConfigError: as for `epoch`, or the strategy's workers are not the ranks.
        """
        from .deliver.distributed import distribute

        batches = self.epoch(
            epoch, start_step, transform=transform, num_parallel_calls=num_parallel_calls, as_supervised=as_supervised
        )
        ranks = {"rank": self._rank, "world_size": self._world_size, "local_batch": self.local_batch_size}
        return distribute(batches, strategy, **ranks)

    def numpy_epoch(
        self,
        epoch: int,
        start_step: int = 0,
        *,
        epochs: int = 1,
        prefetch_bytes: int = _PREFETCH_BYTES,
        transform: Callable[[NumpyBatch], Any] | None = None,
    ) -> Generator[NumpyBatch, None, None]:
        """The batches of `epoch` as NumPy arrays, without TensorFlow.

        A background thread works ahead. It stops when the iterator ends, is closed or is garbage-collected.

        Args:
            epoch, start_step: as for `epoch`.
            epochs: as for `batches`.
            prefetch_bytes: limit of the batches that wait to be taken; 0 for no thread.
            transform: function of each batch, called in the background thread, such as `ImageTransform.on_numpy`.

        Yields:
            What `transform` returns. Without one, by feature, and ``class_id``: numbers as arrays of the feature's
            dtype, strings and bytes as arrays of `bytes` objects, features of variable length as `Ragged`, which is
            ``(values, row_lengths)``.

        Raises:
            ConfigError: there is no such step.
        """
        epoch, start_step = self._checked(epoch, start_step)
        epochs = integer("epochs", epochs, 1)
        prefetch_bytes = integer("prefetch_bytes", prefetch_bytes, 0)
        chunks = self._chunks(epoch, start_step, epochs, locate_features=self.locates_features)
        return self._as_numpy(chunks, prefetch_bytes, transform)

    def _as_numpy(
        self,
        chunks: Generator[tuple[int, Columns], None, None],
        prefetch_bytes: int,
        transform: Callable[[NumpyBatch], Any] | None = None,
    ) -> Generator[NumpyBatch, None, None]:
        return iterate_numpy(
            chunks,
            self._stored,
            self.schema,
            self.fill,
            counters=self._counters,
            prefetch_bytes=prefetch_bytes,
            transform=transform,
            large=min(sizes.large_steps(self.local_batch_size) for sizes in self._chunk_sizes),
        )

    def chunks(self, epoch: int, start_step: int = 0) -> Generator[tuple[int, Columns], None, None]:
        """The epoch in chunks of several steps, as NumPy and Arrow columns; `epoch` and `numpy_epoch` cut them up.

        Yields:
            The number of steps, and columns of ``steps * local_batch_size`` rows, step after step.
        """
        for steps, columns in self._chunks(epoch, start_step, locate_features=False):
            yield steps, join_frames(columns)

    def _chunks(
        self, epoch: int, start_step: int, epochs: int = 1, *, locate_features: bool, with_origins: bool = False
    ) -> Generator[tuple[int, Columns], None, None]:
        """`_gather_chunks`, with sample keys if they are wanted."""
        epoch, step = self._checked(epoch, start_step)
        last, _ = self._checked(epoch + epochs - 1)
        for steps, columns in self._gather_chunks(
            range(epoch, last + 1), step, locate_features=locate_features, with_origins=with_origins
        ):
            if step == self.steps_per_epoch:
                epoch, step = epoch + 1, 0
            if self._sample_keys:
                columns = {**columns, SAMPLE_KEY: sample_keys(self._seed, epoch, self._positions(step, steps))}
            step += steps
            yielded = time.perf_counter()
            yield steps, columns
            waited = time.perf_counter() - yielded
            self._counters.add("deliver", items=steps * self.local_batch_size, wait=waited)

    def with_share(self, start: int, stop: int) -> Self:
        """The same loader or mixture with another share of each global batch: its samples ``[start, stop)``.

        If the shares of all ranks make up ``[0, batch_size)``, together they read the same global batches as before.
        Shares are not filled up, except that an empty one gets one sample of weight 0.

        Raises:
            ConfigError: there are no such samples.
        """
        other = self._copy()
        other._slices = self._geometry.share_slices(start, stop)
        return other

    def _copy(self) -> Self:
        other = object.__new__(type(self))  # `copy.copy` would call `__reduce__`, and open the dataset again
        vars(other).update(vars(self))
        other._make_dataset, other._readings = None, weakref.WeakSet()
        return other

    @property
    def _streams(self) -> range:
        """The streams that this rank has a slice of."""
        return range(self._slices[0].stream, self._slices[-1].stream + 1)

    def _positions(self, step: int, steps: int) -> npt.NDArray[np.int64]:
        """Positions of this rank's samples in the epoch's global order: int64 [steps * local batch]."""
        piece = self._geometry.piece
        places = np.concatenate([part.stream * piece + part.offsets() for part in self._slices])
        firsts = np.arange(step, step + steps, dtype=np.int64) * self._geometry.batch_size
        positions: npt.NDArray[np.int64] = np.add.outer(firsts, places).reshape(-1)
        return positions

    def _added(self) -> dict[str, npt.DTypeLike]:
        """Columns of a batch beside features and classes, with the dtype of one sample's entry."""
        added: dict[str, npt.DTypeLike] = {}
        if self._slices[0].weighted:
            added[WEIGHT] = np.float32
        added |= dict.fromkeys(map(mask_name, self.masks), np.bool_)
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
