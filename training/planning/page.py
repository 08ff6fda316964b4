"""A plan as text for people, and as JSON.

Tested in tests/training/planning/test_plan.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from .plan import RunPlan

_LABEL_WIDTH = 19


def plan_json(plan: RunPlan) -> str:
    return json.dumps(asdict(plan) | {"memory_total_bytes": sum(plan.memory_bytes.values())}, indent=1) + "\n"


def plan_text(plan: RunPlan) -> str:
    lines = [f"{label:<{_LABEL_WIDTH}}{text}" for label, text in _rows(plan)]
    return "\n".join([*lines, "", *_wire_table(plan)]) + "\n"


def _rows(plan: RunPlan) -> Iterator[tuple[str, str]]:
    yield "dataset", plan.dataset
    splits = ", ".join(f"{split} {records:,}" for split, records in plan.records.items())
    yield "records", splits
    of = f", {len(plan.classes)} {'labels' if plan.task == 'multilabel' else 'classes'}" if plan.classes else ""
    yield "task", f"{plan.task}{of}"
    share = "" if plan.ranks == 1 else f", {plan.local_batch_size:,} of them on each of {plan.ranks} ranks"
    yield "batch", f"{plan.batch_size:,} samples a step{share}"
    yield "steps", f"{plan.steps_per_epoch:,} an epoch, {plan.total_steps:,} in all"
    of = "" if plan.trained_parameters == plan.parameters else f", {plan.trained_parameters:,} of them trained"
    yield "model", f"{plan.network}: {plan.parameters:,} parameters{of}; computes in {plan.precision}"
    warmup = f"{plan.first_rate:.4g} at step 0, " if plan.warmup_steps else ""
    yield (
        "learning rate",
        f"{plan.optimizer}: {warmup}peak {plan.peak_rate:.4g} at step {plan.warmup_steps:,}, "
        f"{plan.last_rate:.4g} at the last",
    )
    parts = ", ".join(f"{kind} {_size(size)}" for kind, size in plan.memory_bytes.items())
    yield "memory", f"about {_size(sum(plan.memory_bytes.values()))} on each rank: {parts}"
    yield "checkpoints", _checkpoints(plan)
    yield from plan.outputs.items()


def _checkpoints(plan: RunPlan) -> str:
    if plan.checkpoints is None:
        return "none: a run that is stopped begins anew (checkpoint.url)"
    if plan.resumes_from is None:
        return f"{plan.checkpoints}: none yet, the run begins at step 0"
    if plan.resumes_from >= plan.total_steps:
        return f"{plan.checkpoints}: of step {plan.resumes_from:,}, the last: nothing is left to train"
    return f"{plan.checkpoints}: the run resumes from step {plan.resumes_from:,}"


def _wire_table(plan: RunPlan) -> Iterator[str]:
    """A row for each method, a column for each number of ranks."""
    yield "received by each rank for a step:"
    yield f"{'':<{_LABEL_WIDTH}}" + "".join(f"{f'{ranks} ranks':>14}" for ranks in plan.wire_bytes)
    for method in next(iter(plan.wire_bytes.values())):
        sizes = [of_ranks[method] for of_ranks in plan.wire_bytes.values()]
        cells = "".join(f"{'refused' if size is None else _size(size):>14}" for size in sizes)
        yield f"{method:<{_LABEL_WIDTH}}{cells}{'  this run' if method == plan.method else ''}"


def _size(size: float) -> str:
    """Format bytes with three digits.

    >>> _size(999), _size(999_400), _size(999_600), _size(1_250_000)
    ('999 B', '999 kB', '1 MB', '1.25 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1000
    return f"{size:,.3g} TB"
