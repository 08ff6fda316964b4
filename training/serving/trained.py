"""Opens a trained model with its preprocessing: from its file, or from a run's checkpoints.

Tested in tests/training/serving/test_export.py and tests/test_forged_files.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf

from ringfeed.pipeline.select.sample_columns import mask_name
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.destination.provenance import digest_of
from ringfeed.sharding.errors import ConfigError, DatasetError, TrainingError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.prepare import PrepareOptions, check_trusted, restore_options
from ringfeed.sharding.prepare.new_records import open_new_records
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources.records.in_memory import write_records
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.temporary_folder import temporary_folder
from ringfeed.sharding.storage.untrusted_files import guarded, open_untrusted
from ringfeed.training.checkpoint.snapshot import check_state
from ringfeed.training.checkpoint.store import Checkpoint, CheckpointStore
from ringfeed.training.config.config_file import parse_config, to_tree
from ringfeed.training.config.data import DataConfig
from ringfeed.training.config.model import APPLICATIONS
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.build import build_model
from ringfeed.training.models.keras_files import check_hdf5
from ringfeed.training.models.model_file import ModelFile, decode_model
from ringfeed.training.models.preprocess import Element, Preprocess, check_masks, feature_columns, masked_features
from ringfeed.training.models.target import Target, plan_target
from ringfeed.training.ring.same_weights import weights_digest
from ringfeed.training.run.inputs import one_manifest, open_manifests

from .prediction_columns import PredictionColumns
from .scorer import RecordScorer

Columns = Mapping[str, Any]

_UNCHECKED_BYTES = 64 << 20  # a network may be so much larger than the weights that it is given


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A network with trained weights, and what it was trained with.

    Attributes:
        network: the network; its outputs are logits, or the prediction of a regression.
        preprocess: function from a loader's element to ``(inputs, target, weight)``.
        config: configuration of the run.
        manifest: manifest of the dataset that it was trained on.
        step: number of steps done.
        source: the file or folder that it was opened from.
        trust_code: whether functions that its records were prepared with may be imported.

    >>> from ringfeed.training import open_trained
    >>> model = open_trained("model.keras")  # doctest: +SKIP
    >>> model({"hours": 2.5, "miles": 900.0})["predicted"]  # doctest: +SKIP
    """

    network: Any
    preprocess: Preprocess
    config: TrainConfig
    manifest: Manifest
    step: int
    source: str = ""
    trust_code: bool = False

    def __call__(self, rows: Any, *, keep: Sequence[str] = ()) -> pa.Table:
        """Return predictions for records in memory, prepared as those that the model was trained on.

        Args:
            rows: a dict; or a DataFrame of pandas or Polars, an Arrow table, or an iterable of dicts. They need the
                columns that the model takes, by the names in the source of its dataset; others are ignored.
            keep: columns to copy; ``*``: all.

        Returns:
            A table with a row for each record, in their order: ``record``, the copied columns, ``predicted``, and,
            where the task has them, ``score`` and ``scores`` (see docs/serving.md).

        Raises:
            ConfigError: a column that the model takes is missing.
            SourceError: a value has another type than the model takes, or there are no records.
        """
        with temporary_folder() as folder:
            records = write_records([rows] if isinstance(rows, Mapping) else rows, Storage(str(folder)))
            return pa.concat_tables(self.scorer(records, self.preparation, keep=keep).tables())

    def scorer(
        self,
        source: Any,
        options: PrepareOptions,
        *,
        keep: Sequence[str] = (),
        kind: str = "auto",
        csv: Mapping[str, Any] | None = None,
        batch_size: int = 1024,
    ) -> RecordScorer:
        """Open records to score: see `open_new_records`."""
        records = open_new_records(source, options, self.columns, keep=keep, kind=kind, csv=csv)
        marked = self.masked
        if self.config.model.name in ("tabular", "wide_deep"):  # which take a missing value of any column
            marked = [feature for feature in self.columns if feature.elements and "float" not in feature.dtype]
        return RecordScorer(
            records=records,
            score=self.compiled_scores,
            predictions=self.predictions,
            marked=[feature.name for feature in marked],
            batch_size=batch_size,
        )

    @property
    def predictions(self) -> PredictionColumns:
        return PredictionColumns(manifest=self.manifest, target=self.target)

    @cached_property
    def preparation(self) -> PrepareOptions:
        """How the records were prepared that the model was trained on.

        A ConfigError says that it was with a function, which `trust_code` does not let import.
        """
        options = restore_options(self.manifest.options.get("prepare", {}), "")
        if not self.trust_code:
            check_trusted(options.steps, self.source)
        return options

    @cached_property
    def compiled_scores(self) -> Callable[[Columns], Any]:
        function: Callable[[Columns], Any] = tf.function(self.scores, reduce_retracing=True, autograph=False)
        return function

    @property
    def classes(self) -> list[str]:
        """Names of the classes or labels, in the order of the scores; a regression has none."""
        return list(self.target.classes)

    @cached_property
    def identity(self) -> str:
        """Digest of what decides its scores: the same for a run's file and for its checkpoint of the same step."""
        tree = to_tree(self.config)
        preprocessing = [tree["task"], {**tree["data"], "url": ""}, tree["model"], self.manifest.identity]
        return digest_of(self.step, preprocessing, weights_digest(self.network.weights))

    @cached_property
    def target(self) -> Target:
        """What the network predicts."""
        return plan_target(self.manifest, self.config)

    @property
    def scores_name(self) -> str:
        """What the scores are: probabilities, or the prediction of a regression."""
        return "prediction" if self.config.task == "regression" else "probabilities"

    @cached_property
    def columns(self) -> list[Feature]:
        """The columns that the preprocessing uses, in the order of the dataset."""
        features = feature_columns(self.manifest, self.config.data)
        masked = masked_features(self.manifest, self.config.data)
        specs = {feature.name: column_spec(feature) for feature in features} | mask_specs(masked)
        traced = tf.function(self.scores, input_signature=[specs], autograph=False).get_concrete_function()
        owners = [name for name in sorted(specs) for _ in tf.nest.flatten(specs[name], expand_composites=True)]
        operations = {tensor.op: name for tensor, name in zip(traced.graph.inputs, owners, strict=False)}
        used = {operations[op] for op in _ancestors(traced.outputs[0].op) if op in operations}
        return [feature for feature in features if {feature.name, mask_name(feature.name)} & used]

    @cached_property
    def masked(self) -> list[Feature]:
        """Those of `columns` whose missing values a mask marks; missing floats are NaN."""
        masked = masked_features(self.manifest, self.config.data)
        return [feature for feature in self.columns if feature in masked]

    def inputs(self, columns: Columns) -> Any:
        """Return the network's inputs for a batch of the dataset's columns, and masks of missing values."""
        first = next(iter(columns.values()))
        size = first.nrows(tf.int32) if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0]
        element: Element = {"class_id": tf.zeros([size], tf.int32), **columns}
        for name in (self.manifest.schema.label, self.config.data.target):
            if name is not None:  # not known; the preprocessing of a batch to train on may look at it
                element = {name: _zeros(self.manifest.schema[name], size), **element}
        return self.preprocess(element)[0]

    def scores(self, columns: Columns) -> Any:
        """Return scores for a batch of the dataset's columns, and masks of missing values.

        They are float32 [batch, classes]: the probabilities of classes, also of both classes of a binary task, or of
        labels, each for itself. Those of a regression are its prediction, float64 [batch, 1].
        """
        return self.scores_of(self.inputs(columns))

    def scores_of(self, inputs: Any) -> Any:
        """Return the same for a batch of the network's inputs."""
        outputs = self.network(inputs, training=False)
        if self.config.task == "regression":
            return tf.cast(outputs, tf.float64)
        outputs = tf.cast(outputs, tf.float32)
        match self.config.task:
            case "multiclass":
                return tf.nn.softmax(outputs)
            case "binary":
                return tf.sigmoid(tf.concat([-outputs, outputs], 1))
        return tf.sigmoid(outputs)


def column_spec(feature: Feature) -> Any:
    dtype = tf.string if feature.dtype in ("string", "binary") else tf.as_dtype(feature.dtype)
    if feature.fixed_shape is None:
        return tf.RaggedTensorSpec([None, None], dtype)
    return tf.TensorSpec([None, *feature.fixed_shape], dtype)


def mask_specs(features: Iterable[Feature]) -> dict[str, Any]:
    return {mask_name(feature.name): tf.TensorSpec([None], tf.bool) for feature in features}


def _ancestors(operation: Any) -> set[Any]:
    """Return the operations of a graph that one depends on, and itself."""
    found, waiting = set(), [operation]
    while waiting:
        if (next_one := waiting.pop()) not in found:
            found.add(next_one)
            waiting += [tensor.op for tensor in next_one.inputs]
    return found


def _zeros(feature: Feature, size: Any) -> Any:
    if feature.fixed_shape is None:
        return tf.RaggedTensor.from_row_lengths(tf.zeros([0], feature.dtype), tf.zeros([size], tf.int64))
    return tf.zeros([size, *feature.fixed_shape], column_spec(feature).dtype)  # texts are empty


def open_trained(source: str, data_url: str | None = None, *, trust_code: bool = False) -> TrainedModel:
    """Open a trained model.

    Args:
        source: the file that `output.model` named, or the folder of a run's checkpoints: the newest is taken.
        data_url: for checkpoints, where the dataset of the run is now; None: where the run found it.
        trust_code: import and call the function that builds the network, if the model names one, and fetch the
            dataset that checkpoints name from any host.

    Raises:
        ConfigError: there is no model, its network cannot be built here, or it names a function without `trust_code`.
        DatasetError: checkpoints need their dataset, which is not there, or has changed.
        TrainingError: the weights do not fit the network, as where a user's code has changed.

    >>> model = open_trained("model.keras")  # doctest: +SKIP
    >>> model([{"hours": 2.5, "miles": 900.0}], keep=["miles"]).to_pylist()  # doctest: +SKIP
    """
    if source.endswith(".keras"):
        if data_url is not None:
            raise ConfigError(f"--data goes with a folder of checkpoints; {source} holds all it needs")
        with open_untrusted(source, "model") as data:
            file = decode_model(data, source)
        _check_trusted(file.config, source, trust_code)
        with guarded(source, "the weights of its network", error=TrainingError), TemporaryDirectory() as folder:
            path = Path(folder) / "model.weights.h5"
            path.write_bytes(file.weights)
            _check_size(file, check_hdf5(path), source)
            return _build(file, lambda network: _load_file(network, path, file.config, source), source, trust_code)
    store = CheckpointStore(source, check=check_state)
    newest = None if Path(source).is_file() else store.newest()
    if newest is None:
        raise ConfigError(
            f"there is no model at {source}: name a .keras file (output.model), or a folder of checkpoints "
            "(checkpoint.url)"
        )
    config = parse_config(newest.state["config"], source)
    _check_trusted(config, source, trust_code)
    if data_url is None:
        _check_place(config.data, source, trust_code)
    manifest = _manifest(newest, config, source, data_url)
    check_masks(newest.state, manifest, config.data, source)
    file = ModelFile(config=config, manifest=manifest, step=newest.step, weights=b"")
    with guarded(source, "the weights of its network", error=TrainingError):
        _check_size(file, sum(array.nbytes for array in newest.arrays.values()), source)
        return _build(file, lambda network: _load_checkpoint(network, newest, config, source), source, trust_code)


def _check_place(data: DataConfig, source: str, trust_code: bool) -> None:
    """Refuse to fetch a dataset from a host that the command line does not name: whoever wrote the file chose it."""
    for place in data.urls.values():
        if Storage(place).local_path is None and _host(place) != _host(source) and not trust_code:
            remedy = (
                "name it with --data URL, or" if data.mixture is None else "use the model's file (output.model), or"
            )
            raise ConfigError(
                f"{source} names {place} as its dataset, which was not contacted, since you did not name that place; "
                f"{remedy}, or add --trust-code if you trust that file"
            )


def _host(url: str) -> str:
    """The part of a URL that says whom to contact; chained URLs as a whole."""
    return url if "::" in url else "/".join(url.split("/", 3)[:3])


def _check_size(file: ModelFile, weights_bytes: int, source: str) -> None:
    """Refuse a built-in network that is far larger than its weights, before it takes memory."""
    if ":" in file.config.model.name and not file.config.model.name.startswith(APPLICATIONS):
        return
    count = count_weights(file.manifest, _for_serving(file.config))
    if 2 * count > weights_bytes + _UNCHECKED_BYTES:  # the smallest weights have two bytes
        raise _misfit(source, file.config, f"{weights_bytes} bytes of weights there, {count} weights here")


def _check_trusted(config: TrainConfig, source: str, trust_code: bool) -> None:
    """Refuse a model that names a function: whoever wrote the file chose the module to import."""
    name = config.model.name
    if ":" in name and not name.startswith(APPLICATIONS) and not trust_code:
        raise ConfigError(
            f"{source} names code to build its network with ({name}), which was not imported; if you trust that file, "
            "add --trust-code"
        )


def _manifest(checkpoint: Checkpoint, config: TrainConfig, source: str, data_url: str | None) -> Manifest:
    data, url = config.data, data_url or config.data.place
    remedy = "name its place now with --data URL" if data_url is None else "--data names another folder"
    if data.mixture is not None:
        remedy = "use the model's file (output.model), which needs none"
        if data_url is not None:
            raise ConfigError(f"--data names one dataset, and {source} is of a mixture: {remedy}")
    elif data_url is not None:
        data = replace(data, url=data_url)
    try:
        manifest = one_manifest(data, open_manifests(data))
    except DatasetError as error:
        reason = f"the checkpoints in {source} need statistics of their dataset ({error}); {remedy}"
        raise DatasetError(reason) from error
    if checkpoint.state["dataset"] not in manifest.identities:
        raise DatasetError(
            f"the dataset at {url} is not, or no longer, that of the checkpoints in {source}; name another one with "
            "--data URL, or use the model's file (output.model), which needs none"
        )
    return manifest


def _build(file: ModelFile, load: Callable[[Any], None], source: str, trust_code: bool) -> TrainedModel:
    """Build the network as for a run, but for what only training needs, and load its weights, which must be finite."""
    built = build_model(file.manifest, _for_serving(file.config))
    load(built.network)
    floats = [weight for weight in built.network.weights if str(weight.dtype).startswith(("float", "bfloat"))]
    if bad := [weight.path for weight in floats if not bool(tf.reduce_all(tf.math.is_finite(weight.value)))]:
        is_file = source.endswith(".keras")
        earlier = "use" if is_file else "remove the newest checkpoint there, to use"
        raise TrainingError(
            f"{source}: its weights are not all finite ({bad[0]} and {len(bad) - 1} more variables), so it predicts "
            f"NaN: {earlier} an earlier {'checkpoint' if is_file else 'one'}, or train again with a lower "
            "optimizer.learning_rate"
        )
    return TrainedModel(
        network=built.network,
        preprocess=built.preprocess,
        config=file.config,
        manifest=file.manifest,
        step=file.step,
        source=source,
        trust_code=trust_code,
    )


def _for_serving(config: TrainConfig) -> TrainConfig:
    """Return a configuration without what only training needs: files, and patterns that may take for ever to match."""
    return replace(config, model=replace(config.model, weights=None, remat=(), freeze=()))


def _load_file(network: Any, path: Path, config: TrainConfig, source: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # Keras warns so, and leaves layers as they are
            network.load_weights(path)
    except (ValueError, OSError, KeyError, UserWarning) as error:
        raise _misfit(source, config, brief(error)) from error


def _load_checkpoint(network: Any, checkpoint: Checkpoint, config: TrainConfig, source: str) -> None:
    """Assign the weights, or their moving averages where the run keeps them, as in evaluation."""
    weights = _group(checkpoint, "model")
    shapes = [tuple(weight.shape) for weight in network.weights]
    if shapes != [array.shape for array in weights]:
        raise _misfit(source, config, f"{len(weights)} variables there, {len(shapes)} here, or of other shapes")
    for weight, array in zip(network.weights, weights, strict=True):
        weight.assign(array)
    if averages := _group(checkpoint, "average"):
        averaged = [weight for weight in network.weights if "float" in str(weight.dtype)]
        for weight, array in zip(averaged, averages, strict=True):
            weight.assign(array)


def _group(checkpoint: Checkpoint, kind: str) -> Sequence[Any]:
    arrays = checkpoint.arrays.items()
    return [np.asarray(array) for name, array in arrays if name.startswith(f"{kind}/")]


def _misfit(source: str, config: TrainConfig, problem: str) -> TrainingError:
    return TrainingError(
        f"the weights of {source} do not fit the network that model.name={config.model.name} builds here ({problem}); "
        "use the code that it was trained with"
    )


def count_weights(manifest: Manifest, config: TrainConfig) -> int:
    """Return the number of weights of the network that `build_model` builds; a user's own network is not tried."""

    def build() -> int:
        with keras.StatelessScope(initialize_variables=False):
            return sum(math.prod(weight.shape) for weight in build_model(manifest, config).network.weights)

    # Keras keeps a list of variables to initialise for each thread, and drops it when the thread ends.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(build).result()
