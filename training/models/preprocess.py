"""Preprocessing: from a loader's element to a model's `(inputs, class_id, weight)`; `build` puts other targets in.

The configuration decides here which columns a model sees, and what becomes of each; `pipeline.transforms.tabular` does
it. Images are in `images`. Every builder of a network returns a `BuiltModel`.
Tested in tests/training/models/test_preprocess.py and tests/training/models/test_models.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ringfeed.pipeline.transforms.tabular import masked_columns, plan_columns
from ringfeed.pipeline.transforms.tabular_ops import tabular_inputs
from ringfeed.pipeline.transforms.tabular_plan import TabularPlan
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.sharding.messages import did_you_mean, listed
from ringfeed.sharding.prepare.expression import filter_complete
from ringfeed.sharding.schema import Feature
from ringfeed.training.config.data import DataConfig
from ringfeed.training.config.keys import as_yaml

from .target import Target

Element = Mapping[str, Any]
Inputs = Any
Preprocess = Callable[[Element], tuple[Inputs, Any, Any]]

_LEAVE_OUT = "leave it out with data.exclude=[{}]"


def _leave_out(name: str) -> str:
    return _LEAVE_OUT.format(as_yaml([name])[1:-1])


def feature_columns(manifest: Manifest, data: DataConfig) -> list[Feature]:
    """Return the columns that a model may see: those included and not excluded, never the target.

    A label that is not the target is left out, too, unless it is included by name. A ConfigError says that a column is
    unknown, that the target is included, or that no column is left.
    """
    label = manifest.schema.label
    target = data.target or label
    for key in ("include", "exclude", "categorical"):
        for name in getattr(data, key) or ():
            if name not in manifest.schema.names:
                names = manifest.schema.names
                hint = did_you_mean(name, names, f"the columns are: {listed(names)}")
                raise ConfigError(f"data.{key}: the dataset has no column {name!r}; {hint}")
    if data.include is not None and target in data.include:
        role = "target" if data.target else "label"
        raise ConfigError(f"data.include: {target!r} is the {role}; a model must not see it")
    others = set(manifest.schema.names) - {label} if data.include is None else set(data.include)
    wanted = others - set(data.exclude) - {target}
    columns = [feature for feature in manifest.schema.features if feature.name in wanted]
    if not columns:
        raise ConfigError("data.include and data.exclude leave no column to learn from")
    return columns


def only_column(found: Sequence[Feature], model: str, kind: str) -> Feature:
    """Return the one column of a kind that a model takes; a ConfigError if there is none, or more."""
    if len(found) != 1:
        names = ", ".join(repr(feature.name) for feature in found) or "none"
        raise ConfigError(f"{model} takes one {kind}, the dataset has {names}; choose with data.include")
    return found[0]


def plan_tabular(manifest: Manifest, data: DataConfig, columns: Sequence[Feature] | None = None) -> TabularPlan:
    """Plan what becomes of columns (None: all that a model may see), from the statistics of the training split alone.

    A ConfigError says what to do about a column that cannot be an input of a tabular model.
    """
    columns = feature_columns(manifest, data) if columns is None else columns
    for feature in columns:
        if feature.is_image:
            raise ConfigError(
                f"column {feature.name!r} holds images, which a tabular model cannot take; choose a network of images "
                f"with model.name=convnet and model.image_shape=[64,64,3], or {_leave_out(feature.name)}"
            )
    return plan_columns(
        manifest,
        columns,
        split=data.train_split,
        categorical=data.categorical,
        leave_out=_LEAVE_OUT,
    )


def masked_features(manifest: Manifest, data: DataConfig) -> list[Feature]:
    """Return the columns that a model may see whose missing values a mask marks; missing floats are NaN."""
    masked = set(masked_columns(manifest))
    return [feature for feature in feature_columns(manifest, data) if feature.name in masked]


def check_masks(entry: Mapping[str, Any], manifest: Manifest, data: DataConfig, source: str) -> None:
    """Raise a TrainingError for a model of an earlier version, which took a value for a missing one instead of a mask.

    `entry` holds what the model's file or checkpoint, the `source`, has of `mask_entry`.
    """
    wanted = mask_entry(manifest, data)
    if wanted and entry.get("masks") != wanted["masks"]:
        names = ", ".join(wanted["masks"])
        raise TrainingError(
            f"{source} is of an earlier version of ringfeed, which passed missing values to the network as values that "
            f"records can hold (in {names}): train the model again"
        )


def mask_entry(manifest: Manifest, data: DataConfig) -> dict[str, Any]:
    """Return the entry about masks in the file or the checkpoint of a model; none if no value is missing."""
    names = [feature.name for feature in masked_features(manifest, data)]
    return {"masks": names} if names else {}


def refuse_missing(features: Sequence[Feature], manifest: Manifest, model: str, remedy: str = "") -> None:
    """Raise a ConfigError for columns whose missing values a network would take for values, since it has no masks.

    `model` is `model.name`, `remedy` another remedy than to leave out the column or records.
    """
    masked = set(masked_columns(manifest))
    for feature in features:
        if feature.name in masked:
            raise ConfigError(
                f"column {feature.name!r} ({feature.dtype}) has missing values, which model.name={model} cannot tell "
                f"from others: {remedy}{_leave_out(feature.name)}, or drop such records: "
                f"shard-dataset build {filter_complete(feature.name)}"
            )


def label_and_weight(element: Element) -> tuple[Any, Any]:
    """Return `class_id`, int32 [batch], and the sample weights, float32 [batch]; 1 if the loader gives none."""
    class_id = element["class_id"]
    weight = element.get("sample_weight")
    return class_id, tf.ones_like(class_id, tf.float32) if weight is None else weight


def tabular_preprocess(plan: TabularPlan) -> Preprocess:
    """Make a function from a loader's element to the inputs of the tabular model, as `TabularTransform` does."""

    def preprocess(element: Element) -> tuple[Inputs, Any, Any]:
        return tabular_inputs(element, plan), *label_and_weight(element)

    return preprocess


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A network, and the functions from a loader's element to its inputs: `augmented` is for training, if not None."""

    network: Any
    preprocess: Preprocess
    augmented: Preprocess | None = None


def check_outputs(network: Any, name: str, target: Target) -> None:
    """Raise a ConfigError unless a network, which `model.name` names, ends in the outputs of its task."""
    shape, wanted = network.output_shape, target.outputs
    if not isinstance(shape, tuple) or shape[-1] != wanted:
        each = {"multiclass": f"{wanted} logits, one per class", "multilabel": f"{wanted} logits, one per label"}
        of = each.get(target.task, "1 logit" if target.task == "binary" else "1 number")
        raise ConfigError(f"model.name: {name} must return a model of {of}, got an output of shape {shape}")
