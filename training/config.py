"""The configuration of a training run: a frozen tree of options, checked when it is made.

`config_file` reads it from YAML and the command line; nothing here opens a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..pipeline.transforms.image_options import ColourJitter, RandomCrop
from ..sharding.errors import ConfigError

__all__ = [
    "DECAYS",
    "AugmentConfig",
    "CheckpointConfig",
    "DataConfig",
    "LossScaleConfig",
    "ModelConfig",
    "OptimizerConfig",
    "OutputConfig",
    "ScheduleConfig",
    "TrainConfig",
]

DECAYS = ("cosine", "polynomial", "step", "constant")
OPTIMIZERS = ("lars", "sgd", "adam", "adamw")
PRECISIONS = ("float32", "float16", "bfloat16")
NORMS = ("batch", "layer", "none")
_FUNCTION = re.compile(r"\w+(\.\w+)*:\w+")
DAMAGE_POLICIES = ("error", "previous")
_SIZES = 2**31  # TensorFlow's limit for many sizes; and a float holds the product of any two


def _key(default: Any, text: str) -> Any:
    """Declare a field with the line that `--help` prints for it."""
    return field(default=default, metadata={"help": text})


def _require(holds: bool, key: str, rule: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{key} must be {rule}, got {value!r}")


def _require_finite(key: str, value: float) -> None:
    _require(0 <= value < math.inf, key, "finite and at least 0", value)


def _require_size(key: str, value: int) -> None:
    """Check a size that TensorFlow, or a product of floats, must hold."""
    _require(value >= 1, key, "at least 1", value)
    _require(value < _SIZES, key, "below 2**31", value)


def _are_sizes(values: Sequence[int]) -> bool:
    return all(1 <= value < _SIZES for value in values)


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def _one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    _require(value in allowed, key, f"one of {', '.join(allowed)}", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Options of the data: samples, batches and features."""

    url: str = field(metadata={"help": "dataset that shard-dataset wrote: a path, s3://..., hdfs://..."})
    train_split: str = _key("train", "split to train on")
    eval_split: str | None = _key("test", "split to evaluate on; null: no evaluation")
    batch_size: int = _key(1024, "samples per step over all ranks together (the global batch)")
    balance: str | Mapping[Any, float] = _key("natural", "natural, uniform, power:A, X->Y:EPOCHS, or {class: weight}")
    include: tuple[str, ...] | None = _key(None, "columns to use as features; null: all but the label")
    exclude: tuple[str, ...] = _key((), "columns to leave out of the features")
    categorical: tuple[str, ...] = _key((), "integer columns that are codes: embedded, not standardised")
    cache: str = _key("none", "where to keep copies of shards: none, memory, or a folder on a local disk")
    cache_bytes: int | None = _key(
        None, "size limit of the cache; null: 1 GiB of memory, or 0.8 of the free space of the disk"
    )

    def __post_init__(self) -> None:
        _require(bool(self.url), "data.url", "a path or URL", self.url)
        _require_size("data.batch_size", self.batch_size)
        _require(bool(self.cache), "data.cache", "none, memory or a path", self.cache)
        if self.cache_bytes is not None:
            _require(self.cache_bytes >= 1, "data.cache_bytes", "at least 1", self.cache_bytes)
            _require(self.cache != "none", "data.cache_bytes", "null without data.cache", self.cache_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Options of the network."""

    name: str = _key("tabular", "tabular, convnet, or module:function, called with (manifest, config)")
    hidden: tuple[int, ...] = _key((256, 128), "units of the hidden layers (tabular: all; convnet: before the output)")
    norm: str = _key("batch", f"normalisation: {', '.join(NORMS)}")
    dropout: float = _key(0.0, "fraction of hidden units dropped in training, in [0, 1)")
    embedding_dim: int | None = _key(None, "width of embeddings; null: 1.6 * categories ** 0.56, at most 32")
    filters: tuple[int, ...] = _key((32, 64), "convnet: filters of each block; each block halves the image")
    image_shape: tuple[int, ...] | None = _key(None, "convnet: [height, width, channels] to decode images to")
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "any keys, for module:function"})

    def __post_init__(self) -> None:
        known = self.name in ("tabular", "convnet") or bool(_FUNCTION.fullmatch(self.name))
        _require(known, "model.name", "tabular, convnet, or module:function", self.name)
        _one_of("model.norm", self.norm, NORMS)
        _require(0 <= self.dropout < 1, "model.dropout", "in [0, 1)", self.dropout)
        _require(_are_sizes(self.hidden), "model.hidden", "a list of integers in [1, 2**31)", self.hidden)
        filters_hold = bool(self.filters) and _are_sizes(self.filters)
        _require(filters_hold, "model.filters", "a non-empty list of integers in [1, 2**31)", self.filters)
        if self.embedding_dim is not None:
            _require_size("model.embedding_dim", self.embedding_dim)
        if self.image_shape is not None:
            shape_holds = len(self.image_shape) == 3 and _are_sizes(self.image_shape) and self.image_shape[2] in (1, 3)
            rule = "[height, width, 1 or 3], below 2**31"
            _require(shape_holds, "model.image_shape", rule, list(self.image_shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentConfig:
    """Random augmentation of each training image: see `ImageTransform`."""

    flip_left_right: bool = _key(False, "convnet: mirror half of the training images")
    flip_up_down: bool = _key(False, "turn half of the training images upside down")
    crop_area: tuple[float, ...] | None = _key(
        None, "least and greatest share of the area that a crop keeps; null: no crop"
    )
    crop_ratio: tuple[float, ...] = _key((3 / 4, 4 / 3), "least and greatest width / height of a crop")
    brightness: float = _key(0.0, "random factor in [1 - x, 1 + x]")
    contrast: float = _key(0.0, "the same for contrast")
    saturation: float = _key(0.0, "the same for saturation")
    hue: float = _key(0.0, "random rotation in [-x, x] full turns")

    def __post_init__(self) -> None:
        try:
            _ = self.crop, self.jitter  # their constructors check the values
        except ConfigError as error:
            raise ConfigError(f"augment: {error}") from error

    @property
    def crop(self) -> RandomCrop | None:
        """The random crop of images; None: no crop."""
        area: Any = self.crop_area
        ratio: Any = self.crop_ratio
        return None if area is None else RandomCrop(area=area, ratio=ratio)

    @property
    def jitter(self) -> ColourJitter | None:
        """The random change of colours; None: no change."""
        jitter = ColourJitter(
            brightness=self.brightness, contrast=self.contrast, saturation=self.saturation, hue=self.hue
        )
        return None if jitter == ColourJitter() else jitter

    @property
    def random(self) -> bool:
        """Whether any augmentation is on."""
        return self.flip_left_right or self.flip_up_down or self.crop is not None or self.jitter is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Options of the optimizer."""

    name: str = _key("lars", f"one of {', '.join(OPTIMIZERS)}")
    learning_rate: float = _key(1.0, "peak learning rate; for a batch of base_batch_size, if that is given")
    base_batch_size: int | None = _key(None, "linear scaling: the peak is learning_rate * batch_size / base_batch_size")
    weight_decay: float = _key(0.0, "lars: added to the gradient; sgd, adamw: decoupled")
    momentum: float = _key(0.9, "lars, sgd")
    nesterov: bool = _key(False, "lars, sgd")
    trust_coefficient: float = _key(0.001, "lars: eta of arXiv 1708.03888")
    eps: float | None = _key(None, "added to the denominator; null: 0 for lars, 1e-7 for adam and adamw")
    beta_1: float = _key(0.9, "adam, adamw")
    beta_2: float = _key(0.999, "adam, adamw")
    exclude: tuple[str, ...] | None = _key(
        None, "patterns of variable paths without decay and trust ratio; null: biases and normalisation parameters"
    )
    clip_norm: float | None = _key(None, "largest global norm of the gradients; null: no clipping")

    def __post_init__(self) -> None:
        _one_of("optimizer.name", self.name, OPTIMIZERS)
        _require(0 < self.learning_rate < math.inf, "optimizer.learning_rate", "finite and above 0", self.learning_rate)
        _require_finite("optimizer.weight_decay", self.weight_decay)
        no_decay = self.name != "adam" or self.weight_decay == 0
        _require(no_decay, "optimizer.weight_decay", "0 for adam (adamw has it)", self.weight_decay)
        _require(0 <= self.momentum < 1, "optimizer.momentum", "in [0, 1)", self.momentum)
        trust_holds = 0 < self.trust_coefficient < math.inf
        _require(trust_holds, "optimizer.trust_coefficient", "finite and above 0", self.trust_coefficient)
        for name in ("beta_1", "beta_2"):
            _require(0 <= getattr(self, name) < 1, f"optimizer.{name}", "in [0, 1)", getattr(self, name))
        if self.eps is not None:
            _require_finite("optimizer.eps", self.eps)
        if self.base_batch_size is not None:
            _require_size("optimizer.base_batch_size", self.base_batch_size)
        for pattern in self.exclude or ():
            _require(_is_pattern(pattern), "optimizer.exclude", "regular expressions", pattern)
        if self.clip_norm is not None:
            rule = "in [1e-37, 1e37] (it is a float32, as is its reciprocal)"
            _require(1e-37 <= self.clip_norm <= 1e37, "optimizer.clip_norm", rule, self.clip_norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Options of the learning rate over the run."""

    decay: str = _key("cosine", f"after the warm-up: one of {', '.join(DECAYS)}")
    warmup_epochs: float = _key(0.0, "epochs of linear warm-up, fractions allowed")
    init_factor: float = _key(0.0, "learning rate at step 0 of the warm-up, as a fraction of the peak")
    end_factor: float = _key(0.0, "learning rate at the end, as a fraction of the peak (cosine, polynomial)")
    power: float = _key(2.0, "exponent of the polynomial")
    boundaries: tuple[float, ...] = _key((), "step decay: epochs at which the learning rate falls")
    factor: float = _key(0.1, "step decay: factor of the learning rate at each boundary")

    def __post_init__(self) -> None:
        _one_of("schedule.decay", self.decay, DECAYS)
        _require(self.warmup_epochs >= 0, "schedule.warmup_epochs", "at least 0", self.warmup_epochs)
        for name in ("init_factor", "end_factor", "factor"):
            _require_finite(f"schedule.{name}", getattr(self, name))
        _require(0 < self.power < math.inf, "schedule.power", "finite and above 0", self.power)
        rising = list(self.boundaries) == sorted(set(self.boundaries)) and all(
            0 < b < math.inf for b in self.boundaries
        )
        _require(rising, "schedule.boundaries", "rising epochs above 0", list(self.boundaries))
        has_boundaries = self.decay != "step" or bool(self.boundaries)
        _require(has_boundaries, "schedule.boundaries", "given for step decay", list(self.boundaries))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleConfig:
    """Options of the dynamic loss scale of float16."""

    initial: float = _key(2.0**15, "first scale; halved at an overflow")
    growth_interval: int = _key(2000, "steps without an overflow before the scale doubles")

    def __post_init__(self) -> None:
        _require(1 <= self.initial <= 2.0**126, "loss_scale.initial", "at least 1, and at most 2**126", self.initial)
        _require_size("loss_scale.growth_interval", self.growth_interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Options of the checkpoints that a killed run resumes from."""

    url: str | None = _key(None, "folder of the run's checkpoints: a path, s3://..., hdfs://...; null: none")
    every_steps: int | None = _key(None, "steps between checkpoints, in addition to one at the end of each epoch")
    keep: int = _key(3, "number of the newest checkpoints to keep")
    resume: bool = _key(True, "resume from the newest checkpoint; false: the folder must hold none")
    on_damage: str = _key("error", "if the newest checkpoint is damaged: error, or previous (with a warning)")

    def __post_init__(self) -> None:
        _require(self.url != "", "checkpoint.url", "a path or URL, or null", self.url)
        _require(self.keep >= 1, "checkpoint.keep", "at least 1", self.keep)
        _one_of("checkpoint.on_damage", self.on_damage, DAMAGE_POLICIES)
        if self.every_steps is not None:
            _require(self.every_steps >= 1, "checkpoint.every_steps", "at least 1", self.every_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """Options of the files that a run writes."""

    metrics: str | None = _key(None, "JSON file of losses, rates, throughput and evaluations (path or URL)")
    model: str | None = _key(None, "file of the trained model, ending in .keras (path or URL)")
    log_every: int = _key(50, "steps between entries of the log and of the metrics")

    def __post_init__(self) -> None:
        _require(self.log_every >= 1, "output.log_every", "at least 1", self.log_every)
        _require(self.metrics != "", "output.metrics", "a path or URL, or null", self.metrics)
        apart = self.metrics is None or self.metrics != self.model
        _require(apart, "output.metrics", "another file than output.model", self.metrics)
        named = self.model is None or self.model.endswith(".keras")
        _require(named, "output.model", "a path that ends in .keras", self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The configuration of a run: see `ringfeed train --help` for its keys, and `load_config`.

    Raises:
        ConfigError: a value breaks its rule; the message names key, rule and value.
    """

    data: DataConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss_scale: LossScaleConfig = field(default_factory=LossScaleConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    precision: str = _key("float32", f"dtype of computation in layers: one of {', '.join(PRECISIONS)}")
    epochs: int = _key(1, "passes over the training split")
    max_steps: int | None = _key(None, "stop after this many steps; null: after all epochs")
    eval_every_epochs: int = _key(1, "epochs between evaluations; the last epoch is always evaluated")
    seed: int = _key(0, "seed of the weights, the order of samples and dropout")
    deterministic: bool = _key(True, "make the same run on the same machine give the same weights, bit for bit")

    def __post_init__(self) -> None:
        _one_of("precision", self.precision, PRECISIONS)
        _require_size("epochs", self.epochs)
        _require(self.eval_every_epochs >= 1, "eval_every_epochs", "at least 1", self.eval_every_epochs)
        _require(0 <= self.seed < 2**31, "seed", "in [0, 2**31)", self.seed)
        if self.max_steps is not None:
            _require(self.max_steps >= 1, "max_steps", "at least 1", self.max_steps)
        augmentable = self.model.name == "convnet" or not self.augment.random
        _require(augmentable, "model.name", "convnet for augment", self.model.name)
        too_long = self.schedule.warmup_epochs >= self.epochs
        _require(not too_long, "schedule.warmup_epochs", f"below epochs ({self.epochs})", self.schedule.warmup_epochs)
