"""What a network predicts: the label's class, one positive class, a set of labels, or a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean, listed
from ringfeed.sharding.prepare.expression import filter_complete
from ringfeed.sharding.schema import Feature
from ringfeed.training.config.class_names import class_number
from ringfeed.training.config.train_config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    task: str  # one of `TASKS`
    classes: tuple[str, ...] = ()  # names of the classes, or labels; binary: (negative, positive); regression: none
    column: str | None = None  # column that holds it; None: the label
    is_list: bool = False  # whether the column holds lists of the ids of labels; else numbers
    positive: int = 1  # class id of a binary task's positive class, where the label decides
    # A regression's target in the training split has these, in the column's unit
    mean: float = 0.0
    std: float = 1.0

    @property
    def outputs(self) -> int:
        """Width of the network's output: logits, or a regression's prediction in the column's unit."""
        return 1 if self.task in ("binary", "regression") else len(self.classes)

    def of(self, element: Mapping[str, Any]) -> Any:
        """Return the target of a loader's element.

        Class ids are int32 [batch]; flags float32, 0 or 1, [batch] or, of many labels, [batch, labels]; the numbers of
        a regression float64 [batch], since those far from 0 have more digits than float32.
        """
        if self.column is None:
            class_id = element["class_id"]
            return class_id if self.task == "multiclass" else tf.cast(class_id == self.positive, tf.float32)
        values = element[self.column]
        if not self.is_list:
            return tf.cast(values, tf.float64 if self.task == "regression" else tf.float32)
        ids = tf.cast(values.flat_values, tf.int64)
        places = tf.stack([values.value_rowids(), ids], 1)
        shape = tf.stack([values.nrows(), len(self.classes)])
        flags = tf.scatter_nd(places, tf.ones_like(ids, tf.float32), tf.cast(shape, tf.int64))
        return tf.minimum(flags, 1.0)  # an id may come twice in a list


def plan_target(manifest: Manifest, config: TrainConfig) -> Target:
    """Plan the target of a configuration, from the statistics of its dataset.

    A ConfigError says what to do if the dataset has no such target, or it does not fit the task.
    """
    data = config.data
    if data.target is None:
        return _label(manifest, config)
    names = manifest.schema.names
    if data.target not in names:
        hint = did_you_mean(data.target, names, f"the columns are: {listed(names)}")
        raise ConfigError(f"data.target: the dataset has no column {data.target!r}; {hint}")
    feature = manifest.schema[data.target]
    if not feature.numeric:
        raise ConfigError(
            f"data.target: column {feature.name!r} holds {feature.dtype}, task={config.task} needs numbers; classes "
            f"become the label: shard-dataset build --label {feature.name}"
        )
    splits = [name for name in (data.train_split, data.eval_split, data.test_split) if name in manifest.splits]
    known = {str(name): manifest.split(str(name)).statistics[feature.name] for name in splits}
    _check_complete(feature, known)
    if config.task == "multilabel":
        return _labels(feature, known)
    if feature.shape:
        kind = "one list" if feature.elements is None else f"{feature.elements} numbers"
        raise ConfigError(f"data.target: task={config.task} needs one number, {feature.name!r} has {kind} a record")
    own = known[data.train_split]
    if not own.std or own.mean is None:
        raise ConfigError(f"data.target: {feature.name!r} has one value alone in split {data.train_split!r}: {own.min}")
    if config.task == "regression":
        if not 1e-30 < own.std < 1e30 or abs(own.mean) > 1e30:
            raise ConfigError(
                f"data.target: {feature.name!r} has a mean of {own.mean:g} and a standard deviation of {own.std:g}, "
                "which float32 cannot hold: store it in another unit"
            )
        return Target(task="regression", column=feature.name, mean=own.mean, std=own.std)
    _check_flags(feature, known)
    classes = ("false", "true") if feature.dtype == "bool" else ("0", "1")
    return Target(task="binary", classes=classes, column=feature.name)


def _label(manifest: Manifest, config: TrainConfig) -> Target:
    classes = tuple(str(name) for name in manifest.classes)
    if manifest.schema.label is None or len(classes) < 2:
        raise ConfigError(
            f"{config.data.place}: training needs a label with at least two classes; build with --label, or name "
            "another target: data.target with task=binary, multilabel or regression"
        )
    if config.task == "multiclass":
        return Target(task="multiclass", classes=classes)
    positive = config.data.positive
    if positive is None:
        if len(classes) > 2:
            raise ConfigError(
                f"task=binary: the label has {len(classes)} classes, name one as data.positive: {listed(classes)}"
            )
        return Target(task="binary", classes=classes)
    number = class_number("data.positive", str(positive), manifest.classes)
    other = classes[1 - number] if len(classes) == 2 else f"not {positive}"
    return Target(task="binary", classes=(other, classes[number]), positive=number)


def _labels(feature: Feature, known: Mapping[str, FeatureStatistics]) -> Target:
    """Plan a target of many labels: lists of ids, or vectors of 0 and 1."""
    if feature.elements is None:
        if feature.dtype.startswith("float") or any((of.min or 0) < 0 for of in known.values()):
            raise ConfigError(f"data.target: lists of {feature.name!r} must hold ids of labels, integers from 0")
        count = max(int(of.max or 0) for of in known.values()) + 1
    elif len(feature.shape) == 1:
        _check_flags(feature, known)
        count = feature.elements
    else:
        raise ConfigError(
            f"data.target: task=multilabel needs lists of ids or vectors of 0 and 1, {feature.name!r} has shape "
            f"{list(feature.shape)}"
        )
    names = tuple(str(number) for number in range(count))
    return Target(task="multilabel", classes=names, column=feature.name, is_list=feature.elements is None)


def _check_complete(feature: Feature, known: Mapping[str, FeatureStatistics]) -> None:
    for split, of in known.items():
        if missing := of.nulls + of.nonfinite:
            remedy = filter_complete(feature.name, finite=of.nonfinite > 0)
            raise ConfigError(
                f"data.target: {missing} of the values of {feature.name!r} in split {split!r} are missing or not "
                f"finite; drop such records: shard-dataset build {remedy}"
            )


def _check_flags(feature: Feature, known: Mapping[str, FeatureStatistics]) -> None:
    for split, of in known.items():
        if of.min is not None and of.max is not None and not 0 <= of.min <= of.max <= 1:
            raise ConfigError(
                f"data.target: {feature.name!r} must hold 0 and 1, it has {of.min:g} to {of.max:g} in split {split!r}"
            )


def in_units(network: Any, target: Target) -> Any:
    """Return a network of a standardised prediction with a layer behind it that turns that into the target's unit.

    It computes in float64, as `Target.of` does. But Keras takes its arguments as float32, so a mean with more digits
    than that is added in parts.
    """
    if target.task != "regression":
        return network
    first, *rest = _float32_parts(target.mean, target.std)
    outputs = keras.layers.Rescaling(_float32(target.std), first, dtype="float64", name="in_units")(network.output)
    for number, part in enumerate(rest):
        outputs = keras.layers.Rescaling(1.0, part, dtype="float64", name=f"in_units_{number + 1}")(outputs)
    return keras.Model(network.input, outputs, name=network.name)


def _float32(value: float) -> float:
    return float(np.float32(value))


def _float32_parts(mean: float, std: float) -> list[float]:
    """Return float32 numbers that add up to a mean, to a millionth of the standard deviation.

    >>> _float32_parts(2.0**53 + 1000, 500.0), _float32_parts(0.1, 1.0)
    ([9007199254740992.0, 1000.0], [0.10000000149011612])
    """
    parts = [_float32(mean)]
    while abs(rest := mean - sum(parts)) > 1e-6 * std:
        parts.append(_float32(rest))
    return parts
