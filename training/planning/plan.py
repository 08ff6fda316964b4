"""The plan of a run: built as the run itself would be, up to its first step."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
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
