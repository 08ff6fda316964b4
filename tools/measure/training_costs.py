"""Measure transform and step of a workload, each repeated on one batch in memory.

Tested in tests/tools/measure/test_cost_trials.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import mean, median
from typing import Any

import numpy as np

from ringfeed.pipeline import Loader

from .costs import Costs, StepCosts
from .training_trials import Workload

__all__ = ["with_training"]

Samples = tuple[float, ...]
_LEAST_CALLS = 8
_SMALLER = 4  # a step is also measured on a batch so many times smaller
_ON_CORES = 0.6  # processor seconds a second from which on a step counts as one of the cores


def with_training(
    loader: Loader, workload: Workload, costs: Costs, seconds: float, report: Callable[[str], None]
) -> Costs:
    """Costs with those of a transform and a step."""
    batch = next(iter(loader.epoch(0)))
    transform = 0.0
    if workload.transform is not None:
        report(f"{workload.transform_name} alone")
        repeated = iter(workload.repeat_transform(batch))
        _, cpus = _repeat(lambda: next(repeated), seconds / 2)
        transform = mean(cpus) / loader.local_batch_size
        del repeated  # it transforms ahead
        batch = next(iter(workload.batches(0)))
    report(f"{workload.step_name} alone")
    step = _time_step(workload.step, batch, loader.local_batch_size, seconds / 3)
    return replace(costs, transform_seconds=transform, step=_with_fixed_share(step, workload.step, batch, seconds / 6))


def _time_step(step: Callable[[Any], Any], batch: Any, samples: int, seconds: float) -> StepCosts:
    """The costs of a step on a batch."""
    return _step_costs(*_repeat(lambda: _finished(step(batch)), seconds), samples)


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


def _step_costs(walls: Samples, cpus: Samples, samples: int) -> StepCosts:
    """The costs of a step that took these times, and these processor times.

    A step that computes on the cores for most of its time is slower while other programs run; its processor time is
    not. So its own time is that, divided by the threads that it has at best.
    """
    threads = float(np.quantile(np.divide(cpus, walls), 0.9))
    if threads > _ON_CORES:
        return StepCosts(seconds=tuple(cpu / threads for cpu in cpus), core_seconds=mean(cpus), samples=samples)
    return StepCosts(seconds=walls, core_seconds=mean(cpus), samples=samples)


def _repeat(call: Callable[[], Any], seconds: float) -> tuple[Samples, Samples]:
    """Seconds of each call, and processor time in them; the first two, which compile, are not counted."""
    call()
    call()
    walls: list[float] = []
    cpus: list[float] = []
    start = time.perf_counter()
    while len(walls) < _LEAST_CALLS or time.perf_counter() - start < seconds:
        begun, cpu = time.perf_counter(), time.process_time()
        call()
        walls.append(time.perf_counter() - begun)
        cpus.append(time.process_time() - cpu)
    return tuple(walls), tuple(cpus)


def _finished(result: Any) -> Any:
    """Wait for what devices compute."""
    import tensorflow as tf

    tf.test.experimental.sync_devices()
    return result
