"""The plan of a run, built as the run itself would be, up to its first step; as text and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.ring.world import World
from ringfeed.training.run.assembly import Assembly, assemble
from ringfeed.training.run.inputs import open_loader
from ringfeed.training.run.shares import even_shares
from ringfeed.training.run.state.resume import newest_checkpoint
from ringfeed.training.sync.epoch_plan import EpochPlan

from .costs import PlannedRing, bytes_by_method, memory_bytes

_LABEL_WIDTH = 19
_RANKS = (2, 8)  # the plan of one process says what so many ranks would exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    dataset: str  # URL of the dataset, or URLs of a mixture's datasets
    ranks: int
    records: dict[str, int]  # number of records by split
    task: str
    classes: list[str]  # names of the classes or labels; none of a regression
    # Samples of a step, over all ranks and on the rank with the most
    batch_size: int
    local_batch_size: int
    steps_per_epoch: int
    total_steps: int
    network: str
    # The network has so many, and training changes so many
    parameters: int
    trained_parameters: int
    precision: str
    optimizer: str
    # Learning rate at the first step, after the warm-up of `warmup_steps`, and at the last step
    first_rate: float
    peak_rate: float
    last_rate: float
    warmup_steps: int
    memory_bytes: dict[str, int]  # what a rank holds, by kind
    # What a rank receives for a step, by number of ranks and method; None: the configuration refuses the method
    wire_bytes: dict[int, dict[str, float | None]]
    method: str  # the run's own method
    checkpoints: str | None  # URL of their folder
    resumes_from: int | None  # step of the checkpoint that the run resumes from; None: it begins anew
    outputs: dict[str, str]  # URLs of what the run writes, by key


def _without_new_cache(config: TrainConfig) -> TrainConfig:
    """The configuration without a cache on disk that is yet to be made: a plan writes nothing."""
    cache = config.data.cache
    if cache in (None, "none", "memory") or os.path.isdir(cache):
        return config
    return replace(config, data=replace(config.data, cache="none"))


def plan_run(config: TrainConfig, ranks: int) -> RunPlan:
    """Plan a run: everything but its steps, with the same checks, and errors, of dataset, model and checkpoint."""
    ring: Ring = PlannedRing(ranks) if ranks > 1 else SoloRing()
    config = _without_new_cache(config)
    assembly = assemble(config, ring)
    config = assembly.config
    parts, manifest = assembly.parts, assembly.shares.loader.manifest
    epoch_plan = _largest_epoch(config, ranks, assembly)
    total, local = config.total_steps(epoch_plan.steps), max(even_shares(config.data.batch_size, ranks))
    newest = newest_checkpoint(config, manifest)
    schedule: Any = assembly.schedule
    splits = [config.data.train_split, config.data.eval_split, config.data.test_split]
    records = {name: manifest.split(name).records for name in splits if name is not None}
    return RunPlan(
        dataset=config.data.place,
        ranks=ranks,
        records=records,
        task=config.task,
        classes=list(assembly.evaluator.target.classes),
        batch_size=config.data.batch_size,
        local_batch_size=local,
        steps_per_epoch=epoch_plan.steps,
        total_steps=total,
        network=config.model.name,
        parameters=parts.network.count_params(),
        trained_parameters=sum(int(v.value.shape.num_elements()) for v in parts.network.trainable_variables),
        precision=config.precision,
        optimizer=config.optimizer.name,
        first_rate=float(schedule(0)),
        peak_rate=schedule.peak_value,
        last_rate=float(schedule(total - 1)),
        warmup_steps=schedule.warmup_steps,
        memory_bytes=memory_bytes(parts, local, config.optimizer.accumulate),
        wire_bytes={n: bytes_by_method(config, n, parts, epoch_plan) for n in ((ranks,) if ranks > 1 else _RANKS)},
        method=config.compression.method if config.sync.method == "every_step" else config.sync.method,
        checkpoints=config.checkpoint.url,
        resumes_from=None if newest is None else newest.step,
        outputs=_outputs(config),
    )


def _largest_epoch(config: TrainConfig, ranks: int, assembly: Assembly) -> EpochPlan:
    """The epoch of the ranks; where they have parts of their own, for the largest part."""
    if config.sync.clients is None:
        return assembly.epoch_plan
    worlds = [World(rank=rank, size=ranks, local_size=ranks) for rank in range(ranks)]
    steps = max(open_loader(config, world).steps_per_epoch for world in worlds)
    return replace(assembly.epoch_plan, steps=steps)


def _outputs(config: TrainConfig) -> dict[str, str]:
    groups = {
        "output": (config.output, ("metrics", "model", "records")),
        "track": (config.track, ("jsonl", "csv", "tensorboard", "mlflow", "profile", "timeline")),
    }
    named = {f"{group}.{name}": getattr(options, name) for group, (options, names) in groups.items() for name in names}
    return {name: url for name, url in named.items() if url is not None}


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
