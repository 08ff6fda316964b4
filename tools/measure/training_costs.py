"""Measure transform and step of a workload, each repeated on one batch in memory.

Tested in tests/tools/measure/test_loader_costs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

import numpy as np

from ringfeed.pipeline import Loader

from .costs import Costs, StepCosts
from .training_trials import Workload, guarded_step, try_transform
from .trial import time_calls

_LEAST_CALLS = 8
_SMALLER = 4  # a step is also measured on a batch so many times smaller
_ON_CORES = 0.6  # processor seconds a second from which on a step counts as one of the cores


def with_training(
    loader: Loader, workload: Workload, costs: Costs, seconds: float, report: Callable[[str], None]
) -> Costs:
    """Costs with those of a transform and a step.

    Raises:
        ConfigError: one of them fails.
    """
    batch = next(iter(loader.epoch(0)))
    trial = try_transform(workload, batch, seconds / 2, report)
    if trial is not None:
        batch = next(iter(workload.batches(0)))
        costs = replace(costs, transform_seconds=trial.cpu_seconds / trial.samples)
    report(f"{workload.step_name} alone")
    call = guarded_step(workload)
    step = _time_step(call, batch, loader.local_batch_size, seconds / 3)
    return replace(costs, step=_with_fixed_share(step, call, batch, seconds / 6))


def _time_step(step: Callable[[Any], Any], batch: Any, samples: int, seconds: float) -> StepCosts:
    """The costs of a step on a batch, without its first calls, which compile."""
    time_calls(lambda: step(batch), 0.0, least=2)
    return _step_costs(*time_calls(lambda: step(batch), seconds, least=_LEAST_CALLS), samples)


def _with_fixed_share(step: StepCosts, function: Callable[[Any], Any], batch: Any, seconds: float) -> StepCosts:
    """The costs with the share of the time that a smaller batch takes, too; 0 if the step takes no smaller one."""
    import tensorflow as tf

    samples = max(step.samples // _SMALLER, 1)
    if samples == step.samples:
        return step
    try:
        small = tf.nest.map_structure(lambda values: values[:samples], batch)
        other = _time_step(function, small, samples, seconds)
    except Exception:  # whatever a user's function raises on a batch of another size
        return step
    ratio, part = median(other.seconds) / median(step.seconds), samples / step.samples
    return replace(step, fixed_share=min(max((ratio - part) / (1 - part), 0.0), 1.0))


def _step_costs(walls: Sequence[float], cpus: Sequence[float], samples: int) -> StepCosts:
    """The costs of a step that took these times, and these processor times.

    A step that computes on the cores for most of its time is slower while other programs run; its processor time is
    not. So its own time is that, divided by the threads that it has at best.
    """
    threads = float(np.quantile(np.divide(cpus, walls), 0.9))
    seconds = [cpu / threads for cpu in cpus] if threads > _ON_CORES else walls
    return StepCosts(seconds=tuple(seconds), core_seconds=mean(cpus), samples=samples)
