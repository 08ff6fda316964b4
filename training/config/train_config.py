"""The configuration of a training run: a frozen tree of options, checked when it is made.

`config_file` reads it from YAML and the command line; nothing here opens a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .backend import BACKENDS, MirroredConfig, ParameterServerConfig
from .checks import SIZES, Options, duration_seconds, is_function, key, require
from .compression import CompressionConfig
from .data import DataConfig
from .early_stopping import EarlyStoppingConfig, check_comparisons
from .loss import LossConfig
from .model import AugmentConfig, ModelConfig
from .optimizers import LARSConfig, OptimizerConfig
from .outputs import CheckpointConfig, OutputConfig
from .rules import check_pairs
from .schedule import EMAConfig, LossScaleConfig, ScheduleConfig
from .sync import EveryStepConfig, SyncConfig
from .task import TASKS, check_metrics
from .track import TrackConfig

PRECISIONS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Options):
    """The configuration of a run: see `ringfeed train --help` for its keys, and `load_config`.

    Raises:
        ConfigError: a value breaks its rule; the message names key, rule and value.

    >>> from ringfeed.training import load_config
    >>> from pathlib import Path
    >>> _ = Path("flights.yaml").write_text("data: {url: flights, batch_size: 64}")
    >>> load_config("flights.yaml").data.batch_size
    64
    """

    data: DataConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optimizer: OptimizerConfig = field(default_factory=LARSConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)
    ema: EMAConfig = field(default_factory=EMAConfig)
    compression: CompressionConfig = field(default_factory=CompressionConfig)
    sync: SyncConfig = field(default_factory=EveryStepConfig)
    mirrored: MirroredConfig = field(default_factory=MirroredConfig)
    parameter_server: ParameterServerConfig = field(default_factory=ParameterServerConfig)
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    task: str = key("multiclass", f"what to predict: {', '.join(TASKS)}", choices=TASKS)
    metrics: tuple[str, ...] | None = key(
        None, "metrics of evaluations, such as [accuracy, top_5], also as module:function; null: the task's"
    )
    callbacks: tuple[str, ...] | None = key(None, "callbacks of Keras, each as module:function; null: none")
    backend: str = key("horovod", f"what processes exchange gradients by: {', '.join(BACKENDS)}", choices=BACKENDS)
    precision: str = key(
        "float32", f"dtype of computation in layers: one of {', '.join(PRECISIONS)}", choices=PRECISIONS
    )
    epochs: int = key(1, "passes over the training split", at_least=1, below=SIZES)
    max_steps: int | None = key(None, "stop after this many steps; null: after all epochs", at_least=1)
    max_time: str | float | None = key(
        None, "stop after this time, such as 90s, 30m or 1h30m, with a checkpoint and status 0; null: never"
    )
    overfit_batches: int | None = key(
        None, "train on this many batches, the same in each epoch; null: on all", at_least=1
    )
    eval_every_epochs: int = key(1, "epochs between evaluations; the last epoch is always evaluated", at_least=1)
    seed: int = key(0, "seed of the weights, the order of samples and dropout", at_least=0, below=2**31)
    watchdog_seconds: float = key(
        100.0, "end the run if a rank lets the others wait for this long; 0: never", at_least=0
    )
    lost_seconds: float = key(
        20.0, "an elastic run goes on without a rank that has not answered for this long", at_least=1
    )
    jit_compile: bool = key(False, "compile the forward and the backward pass with XLA")
    deterministic: bool = key(True, "make the same run on the same machine give the same weights, bit for bit")

    def check(self) -> None:
        check_pairs(self)
        check_metrics(self.task, self.metrics)
        check_comparisons(self.early_stopping, self.checkpoint, self.task, self.metrics)
        for name in self.callbacks or ():
            require(is_function(name), "callbacks", "a list of module:function", name)
        if self.max_time is not None:
            holds = (duration_seconds(self.max_time) or 0) > 0
            require(holds, "max_time", "a time such as 90s, 30m or 1h30m, or null", self.max_time)
        if self.schedule.total_steps is None:
            length = self.schedule.total_epochs or self.epochs
            name = "epochs" if self.schedule.total_epochs is None else "schedule.total_epochs"
            too_long = self.schedule.warmup_epochs >= length
            rule = f"below {name} ({length:g})"
            require(not too_long, "schedule.warmup_epochs", rule, self.schedule.warmup_epochs)

    def schedule_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps that schedules are made for, wherever the run ends."""
        return self.schedule.total_steps or round((self.schedule.total_epochs or self.epochs) * steps_per_epoch)

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps of the run."""
        return min(self.epochs * steps_per_epoch, self.max_steps or 2**62)
