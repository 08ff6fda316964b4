"""Finds the record that a transform failed on, such as an image that cannot be decoded.

TensorFlow's own error only names an operation. As long as nothing fails, this merely counts batches.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.pipeline.deliver.to_numpy import NumpyBatch, Ragged
from ringfeed.pipeline.select.sample_columns import SAMPLE_KEY, Origin
from ringfeed.sharding.errors import ConfigError, DatasetError, RingfeedError

from .apply import Transform, mapping, unconverted
from .image_ops import decode
from .images import ImageTransform

_ASSERTION = re.compile(r"^(?:Expected '.*' to be true\. Summarized data: |assertion failed: \[)b?'?(.*?)'?\]?$")
_GRAPH_NODES = re.compile(r"^\{\{.*?\}\} | \[Op:.*$|\s*\[\[.*$", re.DOTALL)  # in TensorFlow's messages


def explain_failures(
    dataset: tf.data.Dataset, first: int, stop: int, explain: Callable[[int], Exception]
) -> tf.data.Dataset:
    """The same batches, with an explained error in place of the first one that fails.

    Batches are numbered by zipping, which also counts failed ones. These are then left out, so that the batch after a
    failed one has a number too high.

    Args:
        dataset: the batches of steps ``[first, stop)``.
        first: first step.
        stop: end of the steps.
        explain: makes the error for a step that failed. TensorFlow never frees it.
    """
    try:
        filler = tf.nest.map_structure(_filler, dataset.element_spec)
    except TypeError:
        return dataset
    steps = tf.data.Dataset.range(first, stop)
    end = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), filler))  # shows that the last batches failed
    arrived = tf.data.Dataset.zip(steps, dataset).ignore_errors().concatenate(end)

    def fail(step: np.int64) -> np.bool_:
        raise explain(int(step)).with_traceback(None) from None

    @unconverted
    def check(step: tf.Tensor, numbered: tuple[tf.Tensor, Any]) -> Any:
        number, batch = numbered
        is_next = tf.cond(tf.equal(step, number), lambda: True, lambda: tf.numpy_function(fail, [step], tf.bool))
        with tf.control_dependencies([is_next]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    checked = tf.data.Dataset.zip(steps, arrived).map(check)
    if checked.element_spec != dataset.element_spec:
        return dataset
    return checked.apply(tf.data.experimental.assert_cardinality(stop - first))


def _filler(spec: Any) -> Any:
    """A value of a spec, which no consumer sees; raises a TypeError if the spec is not of a dense or ragged tensor."""
    if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec) or spec.dtype in (tf.variant, tf.resource):
        raise TypeError(f"{spec} is not the spec of a tensor")
    sizes = [] if spec.shape.rank is None else [size or 0 for size in spec.shape]
    if isinstance(spec, tf.TensorSpec):
        return tf.zeros(sizes, spec.dtype)
    rows = [sizes[0], *[0] * (spec.ragged_rank - 1)]
    splits = [tf.zeros([count + 1], spec.row_splits_dtype) for count in rows]
    return tf.RaggedTensor.from_nested_row_splits(tf.zeros([0, *sizes[spec.ragged_rank + 1 :]], spec.dtype), splits)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBatch:
    """A batch that a transform failed on, as it came from the loader."""

    epoch: int
    step: int
    origins: Sequence[Origin]  # where each sample is stored
    batch: NumpyBatch  # values by feature
    bytes_features: Sequence[str]  # names of features that may hold images
    undeclared: Container[str]  # those among them that the dataset does not declare as images

    def explain(self, functions: Sequence[Transform]) -> RingfeedError:
        """Try each sample alone, and make an error that names the failing record and the remedy.

        Args:
            functions: the transforms, in order.
        """
        samples: list[Any] = list(self._samples())
        for function in functions:
            failed: dict[int, str] = {}
            for number, sample in enumerate(samples):
                try:
                    samples[number] = _call(function, sample)
                except tf.errors.OpError as error:
                    failed[number] = _line(error)
                except Exception:  # such as from a transform that takes only whole batches
                    return self._explain_whole(functions)
            if failed:
                return self._blame(function, failed) or self._explain_whole(functions)
        return self._explain_whole(functions)

    def _samples(self) -> Iterator[dict[str, Any]]:
        """The samples as batches of one."""
        ragged = {name: values.rows() for name, values in self.batch.items() if isinstance(values, Ragged)}
        for number in range(len(self.origins)):
            yield {
                name: as_tensor(_only(ragged[name][number]) if name in ragged else values[number : number + 1])
                for name, values in self.batch.items()
            }

    def _blame(self, function: Transform, failed: dict[int, str]) -> RingfeedError | None:
        """The error for one of the samples that a function failed on; None if the samples are not to blame."""
        if isinstance(function, ImageTransform):
            number = min(failed)
            return self._undecodable(function.feature, number, failed[number])
        for name in self.bytes_features:
            reasons = {number: said for number in range(len(self.origins)) if (said := self._decode(name, number))}
            undecodable = sorted(failed.keys() & reasons.keys())
            if undecodable and len(reasons) < len(self.origins):  # else the feature holds no images
                return self._undecodable(name, undecodable[0], reasons[undecodable[0]])
        if len(failed) == len(self.origins):
            return None
        number = min(failed)
        return DatasetError(
            f"{self._describe(number)}: transform {_name(function)} fails: {failed[number]}; fix the record or leave "
            "it out, or let the transform accept it"
        )

    def _undecodable(self, feature: str, number: int, reason: str) -> RingfeedError:
        reason = reason.partition(";")[0].rstrip(".")  # the remedy after it names no dataset; the command below does
        what = f"the image in feature {feature!r} cannot be decoded: {reason}"
        command = (
            f"shard-dataset reshard {shlex.quote(self.origins[number].dataset)} DST --encode png --on-bad-record skip:1"
        )
        if feature in self.undeclared:
            command += f" --schema FILE, where it says features: {{{feature}: {{dtype: binary, encoding: image}}}}"
        return DatasetError(
            f"{self._describe(number)}: {what}; convert other formats, and leave out damaged images, with: {command}"
        )

    def _describe(self, number: int) -> str:
        origin = self.origins[number]
        key = f" ({SAMPLE_KEY} {self.batch[SAMPLE_KEY][number].tolist()})" if SAMPLE_KEY in self.batch else ""
        return f"{origin.dataset}: record {origin.record} of {origin.shard}{key}"

    def _decode(self, feature: str, number: int) -> str | None:
        """Why an image cannot be decoded, or None if it can."""
        try:
            decode(tf.constant(self.batch[feature][number]), 3)
        except tf.errors.OpError as error:
            return _line(error)
        return None

    def _explain_whole(self, functions: Sequence[Transform]) -> RingfeedError:
        element: Any = {name: as_tensor(values) for name, values in self.batch.items()}
        datasets = ", ".join(dict.fromkeys(origin.dataset for origin in self.origins))
        where = f"{datasets}: step {self.step} of epoch {self.epoch}"
        for function in functions:
            try:
                element = _call(function, element)
            except Exception as error:
                return ConfigError(f"{where}: transform {_name(function)} fails: {_line(error)}")
        return RingfeedError(f"{where}: a transform failed, and did not fail again when retried; resume from this step")


def _call(function: Transform, element: Any) -> Any:
    with mapping():
        return function(*element) if type(element) is tuple else function(element)  # as tf.data does


def _only(row: Any) -> Ragged:
    return Ragged(row, np.array([len(row)], np.int64))


def as_tensor(values: Any) -> Any:
    """Return a column of a NumPy batch as a tensor, ragged where it is."""
    if isinstance(values, Ragged):
        return tf.RaggedTensor.from_row_lengths(tf.constant(values.values), values.row_lengths)
    return tf.constant(values)


def _name(function: Transform) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _line(error: Exception) -> str:
    """The first line of an error, without TensorFlow's graph nodes."""
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    line = next(iter(_GRAPH_NODES.sub("", str(text)).strip().splitlines()), type(error).__name__)
    return _ASSERTION.sub(r"\1", line)
