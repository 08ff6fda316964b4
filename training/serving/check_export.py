"""Opens an exported model as other programs do, and compares it with the trained one on a batch.

Converters and savers may only log what they cannot do, so an export counts only once it has given the same scores.
The batch is made of the dataset's statistics: the dataset itself may be out of reach.
Tested in tests/training/serving/test_export_checks.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringfeed.pipeline.select.sample_columns import mask_name
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.errors import TrainingError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.schema import Feature
from ringfeed.training.config.model import APPLICATIONS

from .saved_model import signature_inputs
from .trained import TrainedModel, column_spec, open_trained

_ROWS = 5
_SIDE = 8  # pixels of an encoded image
_UNKNOWN = "\N{SNOWMAN} of no vocabulary"


def trial_batch(model: TrainedModel) -> dict[str, Any]:
    """Return five records for a model: its columns, in the dtypes of a loader, and masks of missing values."""
    statistics = model.manifest.split(model.config.data.train_split).statistics
    draw = np.random.default_rng(0)
    batch = {feature.name: _column(feature, statistics[feature.name], draw) for feature in model.columns}
    masks = {mask_name(feature.name): tf.constant([False, True, False, False, True]) for feature in model.masked}
    return {**batch, **masks}


def _column(feature: Feature, known: FeatureStatistics, draw: np.random.Generator) -> Any:
    dtype = column_spec(feature).dtype
    if feature.fixed_shape is None:
        lengths = np.array([3, 0, 1, 4, 2])
        flat = tf.constant(_values(feature, known, draw, int(lengths.sum())), dtype)
        return tf.RaggedTensor.from_row_lengths(flat, tf.constant(lengths, tf.int64))
    values = _values(feature, known, draw, _ROWS * (feature.elements or 0))
    return tf.reshape(tf.constant(values, dtype), [_ROWS, *feature.fixed_shape])


def _values(feature: Feature, known: FeatureStatistics, draw: np.random.Generator, count: int) -> Any:
    if feature.dtype == "string":
        words = [*(known.vocabulary or ())[:3], _UNKNOWN, ""]
        return [words[number % len(words)] for number in range(count)]
    if feature.dtype == "binary":
        pixels = draw.integers(0, 256, (count, _SIDE, _SIDE, 3), np.uint8)
        return [tf.io.encode_png(image).numpy() for image in pixels]
    low, high = known.min or 0, known.max or 0
    if feature.dtype == "bool":
        return draw.random(count) < 0.5
    if feature.dtype.startswith("float"):
        return (low + (high - low) * draw.random(count)).astype(feature.dtype)
    span, first = int(high) - int(low), int(low)
    limits = np.iinfo(feature.dtype)
    found = [first + round(span * share) for share in draw.random(count)]
    return np.array([min(max(value, limits.min), limits.max) for value in found], feature.dtype)


_RELATIVE, _ABSOLUTE = 1e-3, 1e-4  # other kernels add up in another order


def check_saved_model(model: TrainedModel, folder: str) -> None:
    """Compare the signatures of a SavedModel, with the preprocessing in it."""
    masked = trial_batch(model)
    masks = {mask_name(feature.name) for feature in model.masked}
    plain = {name: values for name, values in masked.items() if name not in masks}
    unmasked = {name: tf.zeros_like(masked[name]) for name in masks}
    with _explained(model, "a SavedModel"):
        signatures = tf.saved_model.load(folder).signatures
        _compare(model.scores(plain | unmasked), _served(model, signatures["serving_default"], plain))
        if masks:
            _compare(model.scores(masked), _served(model, signatures["with_missing"], masked))


def check_keras(model: TrainedModel, path: Path) -> None:
    """Compare a `.keras` file, as ringfeed opens it, and as Keras does unless it needs a user's code."""
    inputs, name = model.inputs(trial_batch(model)), model.config.model.name
    with _explained(model, "a .keras file"):
        networks = [open_trained(str(path), trust_code=True).network]
        if ":" not in name or name.startswith(APPLICATIONS):
            networks.append(keras.models.load_model(path, compile=False))
        for network in networks:
            _compare(model.network(inputs, training=False), network(inputs, training=False))


def check_onnx(model: TrainedModel, content: bytes) -> None:
    """Compare an ONNX model, as ONNX's reference runtime computes it."""
    import onnx
    import onnx.reference

    inputs = model.inputs(trial_batch(model))
    flat, specs = tf.nest.flatten(inputs), tf.nest.flatten(model.network.input)
    with _explained(model, "ONNX"):
        graph = onnx.load_from_string(content)
        onnx.checker.check_model(graph)
        evaluator = onnx.reference.ReferenceEvaluator(graph)
        given = {spec.name: tensor.numpy() for spec, tensor in zip(specs, flat, strict=True)}
        with np.errstate(all="ignore"):  # it also computes what `Where` leaves out, such as 0 / 0
            (found,) = evaluator.run(None, {name: given[name] for name in evaluator.input_names})
        _compare(model.scores_of(inputs), found)


def _served(model: TrainedModel, signature: Any, columns: dict[str, Any]) -> Any:
    found = signature(**signature_inputs(model, columns))[model.scores_name]
    return found[:, None] if len(found.shape) == 1 else found


def _compare(expected: Any, found: Any) -> None:
    mine, theirs = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    if mine.shape != theirs.shape:
        raise ValueError(f"it gives scores of shape {theirs.shape}, not {mine.shape}")
    scale = float(np.abs(mine[np.isfinite(mine)]).max(initial=1.0))
    if not np.allclose(mine, theirs, rtol=_RELATIVE, atol=_ABSOLUTE * scale, equal_nan=True):
        furthest = np.nanmax(np.abs(mine - theirs))
        raise ValueError(f"its scores differ from the model's, by up to {furthest:.3g}")


@contextmanager
def _explained(model: TrainedModel, form: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a runtime meets in a graph
        other = "a .keras file: --out NAME.keras" if form == "a SavedModel" else "a SavedModel: --out FOLDER"
        raise TrainingError(
            f"model.name={model.config.model.name} cannot be exported as {form} ({type(error).__name__}: "
            f"{brief(error)}); export it as {other}"
        ) from error
