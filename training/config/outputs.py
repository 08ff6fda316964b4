"""Options of what a run writes: checkpoints, metrics and the model."""

from __future__ import annotations

from dataclasses import dataclass

from ringfeed.sharding.url_secrets import public_url

from .checks import Options, key, require

DAMAGE_POLICIES = ("error", "previous")
WEIGHTS = ("last", "best")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Options, group="checkpoint"):
    """Options of the checkpoints that a killed run resumes from."""

    url: str | None = key(
        None, "folder of the run's checkpoints: a path, s3://..., hdfs://...; null: none", kind="path"
    )
    every_steps: int | None = key(
        None, "steps between checkpoints, in addition to one at the end of each epoch", at_least=1
    )
    commit_steps: int | None = key(
        None,
        "elastic runs: steps between commits, which ranks keep in memory; null: those between checkpoints",
        at_least=1,
    )
    background: bool = key(True, "write checkpoints while training goes on; false: let the step wait for the write")
    keep: int = key(3, "number of the newest checkpoints to keep", at_least=1)
    best: int = key(0, "number of checkpoints with the best evaluations to keep beside the newest", at_least=0)
    metric: str = key("loss", "metric of the evaluations that makes a checkpoint the best, such as auc")
    resume: bool = key(True, "resume from the newest checkpoint; false: the folder must hold none")
    on_damage: str = key(
        "error", "if the newest checkpoint is damaged: error, or previous (with a warning)", choices=DAMAGE_POLICIES
    )

    @property
    def remedy(self) -> str:
        """What to do after a process of the run was killed."""
        return (
            f"the same command resumes from {public_url(self.url)}"
            if self.url
            else "set checkpoint.url to resume a run"
        )

    @property
    def after_interrupt(self) -> str:
        """What the same command does after Ctrl-C; empty without checkpoints."""
        if self.url is None:
            return ""
        place = public_url(self.url)
        return f"the same command resumes from the last checkpoint in {place}, or starts anew if none is there yet"


@dataclass(frozen=True, kw_only=True)
class OutputConfig(Options, group="output"):
    """Options of the files that a run writes."""

    metrics: str | None = key(None, "JSON file of losses, rates, throughput and evaluations (path or URL)", kind="path")
    model: str | None = key(None, "file of the trained model, ending in .keras (path or URL)", kind="path")
    weights: str = key("last", "weights of output.model: last, or best, from the best checkpoint", choices=WEIGHTS)
    log_every: int = key(50, "steps between entries of the log and of the metrics", at_least=1)
    records: str | None = key(
        None,
        "folder for each rank's records of its steps, which ringfeed profile reads; on a disk that all ranks share",
        kind="disk",
    )
    prometheus_port: int | None = key(
        None, "port of rank 0's Prometheus metrics; rank r takes the port + r", at_least=1, at_most=65535
    )

    def check(self) -> None:
        apart = self.metrics is None or self.metrics != self.model
        require(apart, "output.metrics", "another file than output.model", self.metrics)
        named = self.model is None or self.model.endswith(".keras")
        require(named, "output.model", "a path that ends in .keras", self.model)
