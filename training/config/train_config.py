"""The configuration of a training run: a frozen tree of options, checked when it is made.

`config_file` reads it from YAML and the command line; nothing here opens a file.
Tested in tests/training/config/test_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from .backend import BACKENDS, MIRRORED, PARAMETER_SERVER, MirroredConfig, ParameterServerConfig, check_backend
from .checks import duration_seconds, is_function, key, one_of, require, require_finite, require_size
from .data import DataConfig
from .early_stopping import EarlyStoppingConfig, check_comparisons
from .loss import LossConfig
from .model import AugmentConfig, ModelConfig
from .optimizer import EMAConfig, LossScaleConfig, OptimizerConfig, ScheduleConfig
from .outputs import CheckpointConfig, OutputConfig
from .synchronisation import CompressionConfig, SyncConfig, check_synchronisation
from .task import TASKS, check_task
from .track import TrackConfig

__all__ = ["TrainConfig"]

PRECISIONS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
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
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)
    ema: EMAConfig = field(default_factory=EMAConfig)
    compression: CompressionConfig = field(default_factory=CompressionConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
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
    epochs: int = key(1, "passes over the training split")
    max_steps: int | None = key(None, "stop after this many steps; null: after all epochs")
    max_time: str | float | None = key(
        None, "stop after this time, such as 90s, 30m or 1h30m, with a checkpoint and status 0; null: never"
    )
    overfit_batches: int | None = key(None, "train on this many batches, the same in each epoch; null: on all")
    eval_every_epochs: int = key(1, "epochs between evaluations; the last epoch is always evaluated")
    seed: int = key(0, "seed of the weights, the order of samples and dropout")
    watchdog_seconds: float = key(100.0, "end the run if a rank lets the others wait for this long; 0: never")
    jit_compile: bool = key(False, "compile the forward and the backward pass with XLA")
    deterministic: bool = key(True, "make the same run on the same machine give the same weights, bit for bit")

    def __post_init__(self) -> None:
        one_of("precision", self.precision, PRECISIONS)
        check_task(self.task, self.metrics, self.data, self.loss)
        check_comparisons(
            self.early_stopping,
            self.checkpoint,
            self.output,
            task=self.task,
            metrics=self.metrics,
            eval_split=self.data.eval_split,
        )
        for name in self.callbacks or ():
            require(is_function(name), "callbacks", "a list of module:function", name)
        require_size("epochs", self.epochs)
        require(self.eval_every_epochs >= 1, "eval_every_epochs", "at least 1", self.eval_every_epochs)
        require(0 <= self.seed < 2**31, "seed", "in [0, 2**31)", self.seed)
        require_finite("watchdog_seconds", self.watchdog_seconds)
        if self.max_steps is not None:
            require(self.max_steps >= 1, "max_steps", "at least 1", self.max_steps)
        if self.max_time is not None:
            holds = (duration_seconds(self.max_time) or 0) > 0
            require(holds, "max_time", "a time such as 90s, 30m or 1h30m, or null", self.max_time)
            is_kept = self.checkpoint.url is not None
            require(is_kept, "max_time", "null without checkpoint.url, where the run could not go on", self.max_time)
        if self.overfit_batches is not None:
            require(self.overfit_batches >= 1, "overfit_batches", "at least 1", self.overfit_batches)
            is_common = self.sync.clients is None
            require(is_common, "overfit_batches", "null with sync.clients, whose batches differ", self.overfit_batches)
        augmentable = self.model.takes_images or not self.augment.random
        require(augmentable, "model.name", "a network for images (such as convnet) for augment", self.model.name)
        packs = self.model.name == "text" and self.model.packing
        rule = "1 with model.packing, whose rows hold several records"
        require(not packs or self.optimizer.accumulate == 1, "optimizer.accumulate", rule, self.optimizer.accumulate)
        can_split = not packs or self.backend != MIRRORED
        require(can_split, "model.packing", "false for backend=mirrored, which divides batches by row", True)
        if self.augment.mixes:
            has_classes = self.task == "multiclass"
            require(has_classes, "task", "multiclass for augment.mixup and cutmix, which mix classes", self.task)
            require(self.sync.shares == "equal", "sync.shares", "equal for augment.mixup and cutmix", self.sync.shares)
            needs_whole = self.sync.clients is None
            require(needs_whole, "sync.clients", "null for augment.mixup and cutmix", self.sync.clients)
        if self.data.mixture is not None:
            needs_whole = self.sync.clients is None
            require(needs_whole, "sync.clients", "null with data.mixture, which has no parts", self.sync.clients)
            has_ring = self.backend != PARAMETER_SERVER
            require(has_ring, "backend", "another than parameter_server with data.mixture", self.backend)
        if self.schedule.total_steps is None:
            length = self.schedule.total_epochs or self.epochs
            name = "epochs" if self.schedule.total_epochs is None else "schedule.total_epochs"
            too_long = self.schedule.warmup_epochs >= length
            rule = f"below {name} ({length:g})"
            require(not too_long, "schedule.warmup_epochs", rule, self.schedule.warmup_epochs)
        check_synchronisation(
            self.compression, self.sync, self.optimizer, self.precision, deterministic=self.deterministic
        )
        averages_steps = self.ema.decay is None or self.sync.method == "every_step"
        rule = f"null for sync.method={self.sync.method}, between whose rounds the ranks' weights differ"
        require(averages_steps, "ema.decay", rule, self.ema.decay)
        needs_plain = not (self.sync.batch_norm and (self.jit_compile or self.model.remat))
        rule = "false with jit_compile or model.remat, for the forward pass would exchange statistics within them"
        require(needs_plain, "sync.batch_norm", rule, self.sync.batch_norm)
        has_step = not (self.jit_compile or self.model.remat) or self.backend not in (MIRRORED, PARAMETER_SERVER)
        rule = "another than mirrored and parameter_server for jit_compile and model.remat"
        require(has_step, "backend", rule, self.backend)
        groups = {spec.name: getattr(self, spec.name) for spec in fields(self)} | {"": self}
        check_backend(self.backend, self.parameter_server, self.precision, groups)

    def schedule_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps that schedules are made for, wherever the run ends."""
        return self.schedule.total_steps or round((self.schedule.total_epochs or self.epochs) * steps_per_epoch)

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps of the run."""
        return min(self.epochs * steps_per_epoch, self.max_steps or 2**62)
