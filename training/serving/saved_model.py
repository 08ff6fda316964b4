"""A trained model as a SavedModel that takes the dataset's own columns, as for TensorFlow Serving.

Signature `serving_default`: a tensor [batch, *shape] for each column, by its name, in its dtype, to `probabilities`,
float32 [batch, classes], and `class`, string [batch], the name of the likeliest; of many labels to their probabilities
alone, of a regression to `prediction`, float64 [batch]. Signature `classes`: all names. If values were missing in
training, signature `with_missing` has one more input for each such column, bool [batch], that says where values are
missing; to `serving_default` none are, but floats that are NaN.
`assets.extra/ringfeed.json` describes the inputs.
Tested in tests/training/serving/test_export.py.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from ringfeed.pipeline.select.sample_columns import mask_name
from ringfeed.sharding.destination.provenance import Provenance, digest_of
from ringfeed.sharding.schema import Feature

from .trained import TrainedModel, column_spec

_LENGTHS = "\0lengths"  # behind a column, in whose name there is no NUL
_EXTRA = "assets.extra/ringfeed.json"
_FORMAT = "ringfeed-saved-model-2"
_FILES = ("saved_model.pb", "variables/variables.index")


def provenance_of(model: TrainedModel) -> Provenance:
    """What a SavedModel is made from."""
    return Provenance(record=_EXTRA, digest=digest_of(_FORMAT, model.identity), files=_FILES)


def saved_model_files(model: TrainedModel, check: Callable[[TrainedModel, str], None]) -> dict[str, bytes]:
    """Return the files of the SavedModel by their paths in its folder, after a check of the model and that folder.

    TensorFlow writes them to memory, because its errors about disks are of many lines and kinds.
    """
    features, masks, names = model.columns, _masks_of(model), _names_of(model)
    specs = {}
    for feature in features:
        name = names[feature.name]
        if feature.fixed_shape is None:  # TensorFlow's signatures have no ragged tensors
            specs[name] = tf.TensorSpec([None, None], column_spec(feature).dtype, name=name)
            of_rows = names[feature.name + _LENGTHS]
            specs[of_rows] = tf.TensorSpec([None], tf.int64, name=of_rows)
        else:
            specs[name] = tf.TensorSpec([None, *feature.fixed_shape], column_spec(feature).dtype, name=name)
    classes, task = model.classes, model.config.task

    def serve(**tensors: Any) -> dict[str, Any]:
        columns = {feature.name: tensors[names[feature.name]] for feature in features}
        for name in [feature.name for feature in features if feature.fixed_shape is None]:
            columns[name] = tf.RaggedTensor.from_tensor(columns[name], lengths=tensors[names[name + _LENGTHS]])
        nothing = tf.zeros(tf.shape(next(iter(tensors.values())))[:1], tf.bool)  # is missing, to `serving_default`
        scores = model.scores(columns | {mask: tensors.get(names[mask], nothing) for mask in masks})
        if task == "regression":
            return {model.scores_name: scores[:, 0]}
        if task == "multilabel":
            return {model.scores_name: scores}
        return {model.scores_name: scores, "class": tf.gather(tf.constant(classes), tf.argmax(scores, axis=1))}

    module = tf.Module()
    module.network = model.network  # so that its variables and tables are saved
    traced = tf.function(serve, autograph=False)  # `save` would trace it again if it were the module's
    of_classes = tf.function(lambda: {"classes": tf.constant(classes, tf.string)}, input_signature=[], autograph=False)
    signatures = {
        "serving_default": traced.get_concrete_function(**specs),
        "classes": of_classes.get_concrete_function(),
    }
    if masks:
        of_masks = {names[mask]: tf.TensorSpec([None], tf.bool, name=names[mask]) for mask in masks}
        signatures["with_missing"] = traced.get_concrete_function(**specs, **of_masks)
    folder = f"ram://ringfeed-export-{uuid.uuid4().hex}"
    try:
        tf.saved_model.save(module, folder, signatures=signatures)
        check(model, folder)
        files = _files_in(folder)
    finally:
        tf.io.gfile.rmtree(folder)
    return files | {_EXTRA: (json.dumps(_described(model, features, names), indent=1) + "\n").encode()}


def _files_in(folder: str) -> dict[str, bytes]:
    found = {}
    for parent, _, names in tf.io.gfile.walk(folder):
        for name in names:
            with tf.io.gfile.GFile(f"{parent.rstrip('/')}/{name}", "rb") as file:
                found[f"{parent.rstrip('/')}/{name}".removeprefix(f"{folder}/")] = file.read()
    return found


def _masks_of(model: TrainedModel) -> list[str]:
    return [mask_name(feature.name) for feature in model.masked]


def _names_of(model: TrainedModel) -> dict[str, str]:
    """The names of the inputs: of columns, of masks, and of the lengths of lists."""
    lengths = [feature.name + _LENGTHS for feature in model.columns if feature.fixed_shape is None]
    return input_names([*(feature.name for feature in model.columns), *_masks_of(model), *lengths])


def signature_inputs(model: TrainedModel, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of columns, and masks if there are any, as the inputs of a signature."""
    names, inputs = _names_of(model), {}
    for column, values in columns.items():
        is_list = isinstance(values, tf.RaggedTensor)
        inputs[names[column]] = values.to_tensor() if is_list else values
        if is_list:
            inputs[names[column + _LENGTHS]] = values.row_lengths()
    return inputs


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
    return {
        "format": _FORMAT,
        "made_from": provenance_of(model).digest,
        "step": model.step,
        "task": model.config.task,
        "classes": model.classes,
        "inputs": [
            {"name": names[feature.name], "column": feature.name, "dtype": feature.dtype, "shape": list(feature.shape)}
            | ({"missing": names[mask_name(feature.name)]} if feature in model.masked else {})
            | ({"lengths": names[feature.name + _LENGTHS]} if feature.fixed_shape is None else {})
            | ({"logical": feature.logical} if feature.logical else {})
            for feature in features
        ],
    }
