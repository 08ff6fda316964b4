"""A trained model as a SavedModel that takes the dataset's own columns, as for TensorFlow Serving.

Signature `serving_default`: a tensor [batch, *shape] for each column, by its name, in its dtype, to `probabilities`,
float32 [batch, classes], and `class`, string [batch], the name of the likeliest; of many labels to their probabilities
alone, of a regression to `prediction`, float32 [batch]. Signature `classes`: all names.
`assets.extra/ringfeed.json` describes the inputs.
Tested in tests/training/serving/test_export.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from ringfeed.sharding.schema import Feature

from .trained import TrainedModel, column_spec

__all__ = ["input_names", "write_saved_model"]

_LENGTHS = "_lengths"
_EXTRA = "assets.extra/ringfeed.json"


def write_saved_model(model: TrainedModel, folder: Path) -> None:
    """Write the SavedModel into a folder of this machine."""
    features = model.columns
    names = input_names(feature.name for feature in features)
    specs = {}
    for feature in features:
        name = names[feature.name]
        if feature.fixed_shape is None:  # TensorFlow's signatures have no ragged tensors
            specs[name] = tf.TensorSpec([None, None], column_spec(feature).dtype, name=name)
            specs[name + _LENGTHS] = tf.TensorSpec([None], tf.int64, name=name + _LENGTHS)
        else:
            specs[name] = tf.TensorSpec([None, *feature.fixed_shape], column_spec(feature).dtype, name=name)
    classes, task = model.classes, model.config.task

    def serve(**tensors: Any) -> dict[str, Any]:
        scores = model.scores({f.name: _column(f, names[f.name], tensors) for f in features})
        if task == "regression":
            return {model.scores_name: scores[:, 0]}
        if task == "multilabel":
            return {model.scores_name: scores}
        return {model.scores_name: scores, "class": tf.gather(tf.constant(classes), tf.argmax(scores, axis=1))}

    module = tf.Module()
    module.network = model.network  # so that its variables and tables are saved
    module.serve = tf.function(serve, autograph=False)
    module.classes = tf.function(lambda: {"classes": tf.constant(classes, tf.string)}, input_signature=[])
    signatures = {
        "serving_default": module.serve.get_concrete_function(**specs),
        "classes": module.classes.get_concrete_function(),
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)
    path = folder / _EXTRA
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(_described(model, features, names), indent=1) + "\n")


def _column(feature: Feature, name: str, tensors: Mapping[str, Any]) -> Any:
    if feature.fixed_shape is None:
        return tf.RaggedTensor.from_tensor(tensors[name], lengths=tensors[name + _LENGTHS])
    return tensors[name]


def input_names(columns: Iterable[str]) -> dict[str, str]:
    """Return the names of the inputs, by column: its own, as far as TensorFlow lets an input have it.

    >>> input_names(["hour", "delay (min)", "delay [min]"])
    {'hour': 'hour', 'delay (min)': 'delay__min_', 'delay [min]': 'delay__min__1'}
    """
    names: dict[str, str] = {}
    for column in columns:
        base = re.sub(r"[^A-Za-z0-9_]", "_", column)
        base = base if base[:1].isalpha() else f"column_{base}"
        number, name = 0, base
        while name in names.values():
            number += 1
            name = f"{base}_{number}"
        names[column] = name
    return names


def _described(model: TrainedModel, features: Iterable[Feature], names: Mapping[str, str]) -> dict[str, Any]:
    fill = model.fill
    return {
        "format": "ringfeed-saved-model-1",
        "step": model.step,
        "task": model.config.task,
        "classes": model.classes,
        "inputs": [
            {"name": names[feature.name], "column": feature.name, "dtype": feature.dtype, "shape": list(feature.shape)}
            | ({"missing": fill[feature.name]} if feature.name in fill else {})
            | ({"lengths": names[feature.name] + _LENGTHS} if feature.fixed_shape is None else {})
            | ({"logical": feature.logical} if feature.logical else {})
            for feature in features
        ],
    }
