"""What is done about steps whose gradients were not finite: blame the records, or end a run that cannot recover.

Tested in tests/training/run/test_bad_records.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.pipeline import Loader, Mixture
from ringfeed.pipeline.transforms.failing_record import as_tensor
from ringfeed.sharding.errors import TrainingError
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.precision import LossScale, all_finite
from ringfeed.training.ring.ring import Ring
from ringfeed.training.sync.epoch_plan import EpochPlan

_CHECKED_STEPS = 4  # the batches of the first skipped steps of an entry are read again


def is_at_floor(scale: LossScale) -> bool:
    """Whether no smaller loss scale can prevent overflows."""
    return scale.rule is None or float(scale.scale.numpy()) <= scale.rule.smallest


def check_wire(step: int, is_sent_finite: bool, method: str) -> None:
    """Raise a TrainingError if the gradients of a skipped step, finite before their exchange, overflow in it."""
    if is_sent_finite and method == "fp16":
        raise TrainingError(
            f"the gradients of step {step} are finite, but compression.method=fp16 sends no number beyond 65504: "
            "set compression.method=bf16, or none"
        )


def overflow_error(step: int, config: TrainConfig) -> TrainingError:
    """Return the error of a run that skips steps, from `step` on, which no smaller loss scale can prevent."""
    if config.precision == "float16":
        remedy = "set precision=bfloat16 or float32"
    elif step == 0:
        remedy = "the weights are still the initial ones, so scale down the inputs or outputs of the network"
    else:
        remedy = "lower optimizer.learning_rate, warm up for longer, or set optimizer.clip_norm"
    return TrainingError(f"the gradients of step {step} are not finite in {config.precision}: {remedy}")


def check_weights(network: Any, step: int) -> None:
    """Raise a TrainingError for weights that are not finite after a step: they must not be saved over others."""
    if not bool(all_finite([v.value for v in network.weights if "float" in str(v.dtype)])):
        raise TrainingError(
            f"after step {step} weights are not finite, and are not saved: lower "
            "optimizer.learning_rate, warm up for longer, or set optimizer.clip_norm"
        )


def check_some_counted(skipped_steps: int, steps: int, precision: str) -> None:
    """Raise a TrainingError at the end of a run whose steps were all skipped."""
    if skipped_steps == steps:
        raise TrainingError(
            f"the gradients of all {skipped_steps} steps overflowed in {precision}, so the weights are still the "
            "initial ones: lower loss_scale.initial, or train for longer"
        )


def check_records(
    skipped: Sequence[int],
    ring: Ring,
    loader: Loader | Mixture,
    epoch_plan: EpochPlan,
    preprocess: Callable[[Any], Any],
    url: str,
) -> None:
    """Raise a TrainingError that names records with values that are not finite: no loss scale helps (a collective).

    The skipped steps are the same on all ranks; `url` is the dataset, for the error.
    """
    for step in skipped[:_CHECKED_STEPS]:
        found = ring.allgather_object(bad_records(loader, preprocess, *epoch_plan.batch_at(step)))
        if lines := [line for of_rank in found for line in of_rank]:
            more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
            raise TrainingError(
                f"the gradients of step {step} are not finite because values in {url} are not: "
                f"{', '.join(lines[:3])}{more}; fix these records, leave the columns out with data.exclude, or let "
                "the model accept them"
            )


def bad_records(loader: Loader | Mixture, preprocess: Callable[[Any], Any], epoch: int, step: int) -> list[str]:
    """Return a line for each sample of a step whose inputs, target or weight are not finite after `preprocess`.

    The batch is read again, sample by sample.
    """
    batch, origins = loader.batch_with_origins(epoch, step)
    inputs, target, weight = preprocess({name: as_tensor(values) for name, values in batch.items()})
    finite = [
        finite_samples(tensor) for tensor in [*tf.nest.flatten(inputs), target, weight] if tensor.dtype.is_floating
    ]
    lines = []
    for number, origin in enumerate(origins):
        if all(samples[number] for samples in finite):
            continue
        names = [
            name
            for name, values in batch.items()
            if isinstance(values, np.ndarray) and values.dtype.kind == "f" and not np.isfinite(values[number]).all()
        ]
        where = f" ({', '.join(names)})" if names else ""
        dataset = f" in {origin.dataset}" if isinstance(loader, Mixture) else ""
        lines.append(f"record {origin.record} of {origin.shard}{dataset}{where}")
    return lines


def finite_samples(tensor: Any) -> Any:
    """Return whether each sample of a tensor, also of a ragged one, is finite: bool [batch]."""
    flags = tf.ragged.map_flat_values(tf.math.is_finite, tensor)
    for _ in range(1, flags.shape.rank):
        flags = tf.reduce_all(flags, axis=-1)
    return flags.numpy()
