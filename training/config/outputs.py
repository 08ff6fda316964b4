"""Options of what a run writes: checkpoints, metrics and the model.

Tested in tests/training/config/test_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from .checks import key, one_of, require

__all__ = ["CheckpointConfig", "OutputConfig"]

DAMAGE_POLICIES = ("error", "previous")
WEIGHTS = ("last", "best")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Options of the checkpoints that a killed run resumes from."""

    url: str | None = key(
        None, "folder of the run's checkpoints: a path, s3://..., hdfs://...; null: none", is_path=True
    )
    every_steps: int | None = key(None, "steps between checkpoints, in addition to one at the end of each epoch")
    commit_steps: int | None = key(
        None, "elastic runs: steps between commits, which ranks keep in memory; null: those between checkpoints"
    )
    background: bool = key(True, "write checkpoints while training goes on; false: let the step wait for the write")
    keep: int = key(3, "number of the newest checkpoints to keep")
    best: int = key(0, "number of checkpoints with the best evaluations to keep beside the newest")
    metric: str = key("loss", "metric of the evaluations that makes a checkpoint the best, such as auc")
    resume: bool = key(True, "resume from the newest checkpoint; false: the folder must hold none")
    on_damage: str = key(
        "error", "if the newest checkpoint is damaged: error, or previous (with a warning)", choices=DAMAGE_POLICIES
    )

    def __post_init__(self) -> None:
        require(self.url != "", "checkpoint.url", "a path or URL, or null", self.url)
        require(self.keep >= 1, "checkpoint.keep", "at least 1", self.keep)
        require(self.best >= 0, "checkpoint.best", "at least 0", self.best)
        one_of("checkpoint.on_damage", self.on_damage, DAMAGE_POLICIES)
        if self.every_steps is not None:
            require(self.every_steps >= 1, "checkpoint.every_steps", "at least 1", self.every_steps)
        if self.commit_steps is not None:
            require(self.commit_steps >= 1, "checkpoint.commit_steps", "at least 1", self.commit_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """Options of the files that a run writes."""

    metrics: str | None = key(
        None, "JSON file of losses, rates, throughput and evaluations (path or URL)", is_path=True
    )
    model: str | None = key(None, "file of the trained model, ending in .keras (path or URL)", is_path=True)
    weights: str = key("last", "of output.model: last, or best, those of the best checkpoint", choices=WEIGHTS)
    log_every: int = key(50, "steps between entries of the log and of the metrics")
    records: str | None = key(
        None,
        "folder for each rank's records of its steps, which ringfeed profile reads; on a disk that all ranks share",
        is_path=True,
    )
    prometheus_port: int | None = key(None, "port of rank 0's Prometheus metrics; rank r takes the port + r")

    def __post_init__(self) -> None:
        one_of("output.weights", self.weights, WEIGHTS)
        require(self.log_every >= 1, "output.log_every", "at least 1", self.log_every)
        is_local = self.records is None or (self.records != "" and "://" not in self.records)
        require(is_local, "output.records", "a path of a folder, or null", self.records)
        if self.prometheus_port is not None:
            require(0 < self.prometheus_port < 2**16, "output.prometheus_port", "in [1, 65535]", self.prometheus_port)
        require(self.metrics != "", "output.metrics", "a path or URL, or null", self.metrics)
        apart = self.metrics is None or self.metrics != self.model
        require(apart, "output.metrics", "another file than output.model", self.metrics)
        named = self.model is None or self.model.endswith(".keras")
        require(named, "output.model", "a path that ends in .keras", self.model)
