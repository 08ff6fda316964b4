"""The keys of each way to send gradients.

A method is a class here, its name in the table at the end, and the module that `built_by` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .checks import SIZES, key
from .method import Method, Methods

_EPOCHS, _RUN_SHARE = 4.0, 0.3
"""Warm-up: the paper's epochs, but no more than a share of a short run."""


@dataclass(frozen=True, kw_only=True)
class CompressionConfig(Method, group="compression", built_by="sync.synchronizer:build"):
    """No compression; the base of the methods."""

    dense_share: ClassVar[float] = 0.0
    """Share of a run whose steps are dense at the start, if start_step is null."""
    has_error_feedback: ClassVar[bool] = False
    """Whether a rank adds what it has not sent to its next gradient, which delays it."""
    applies_momentum: ClassVar[bool] = False
    """Whether each rank applies the momentum of SGD, before the average."""

    method: str = "none"

    @property
    def start_step(self) -> int | None:
        """Dense steps at the start; None: a share of the run."""
        return None

    def dense_steps(self, steps: int) -> int:
        """Return the number of steps before the first compressed one, in a run of `steps`."""
        return int(steps * self.dense_share) if self.start_step is None else self.start_step


@dataclass(frozen=True, kw_only=True)
class Compressing(CompressionConfig):
    """Options of methods that may start after some dense steps."""

    start_step: int | None = key(
        None,
        "dense steps at the start, after which onebit freezes the second moment of adam; null: a share of the run that "
        "suits the method, at most 0.2",
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True)
class FP16Config(Compressing, built_by="sync.compression.half:build"):
    """Options of float16 on the wire."""

    method: str = "fp16"


@dataclass(frozen=True, kw_only=True)
class BF16Config(FP16Config):
    """Options of bfloat16 on the wire."""

    method: str = "bf16"


@dataclass(frozen=True, kw_only=True)
class TopKConfig(Compressing, built_by="sync.compression.top_k:build"):
    dense_share: ClassVar[float] = 0.1
    has_error_feedback: ClassVar[bool] = True

    method: str = "top_k"
    ratio: float | None = key(None, "share of entries that are sent; null: 0.01", above=0, at_most=1)

    @property
    def sent_share(self) -> float:
        return 0.01 if self.ratio is None else self.ratio


@dataclass(frozen=True, kw_only=True)
class DGCConfig(CompressionConfig, built_by="sync.compression.dgc:build"):
    applies_momentum: ClassVar[bool] = True

    method: str = "dgc"
    ratio: float | None = key(None, "share of entries that are sent; null: 0.001", above=0, at_most=1)
    warmup_epochs: float | None = key(
        None, "epochs in which the share falls to ratio; null: 4, but at most 0.3 of the run", at_least=0
    )
    local_clip_norm: float | None = key(None, "clip_norm of the mean gradient, applied on each rank", above=0)

    @property
    def sent_share(self) -> float:
        """Share of entries that are sent after the warm-up."""
        return 0.001 if self.ratio is None else self.ratio

    def warmup_steps(self, steps: int, steps_per_epoch: int) -> int:
        """Return the number of steps that the share falls for, in a run of `steps`.

        >>> DGCConfig().warmup_steps(468, 117)
        140
        """
        if self.warmup_epochs is None:
            return int(min(_EPOCHS * steps_per_epoch, _RUN_SHARE * steps))
        return round(self.warmup_epochs * steps_per_epoch)


@dataclass(frozen=True, kw_only=True)
class PowerSGDConfig(Compressing, built_by="sync.compression.powersgd:PowerSGD"):
    """Options of PowerSGD.

    >>> PowerSGDConfig().dense_steps(468)
    46
    """

    dense_share: ClassVar[float] = 0.1
    has_error_feedback: ClassVar[bool] = True

    method: str = "powersgd"
    rank: int = key(1, "rank of the factors", at_least=1, below=SIZES)
    min_rate: float = key(2.0, "matrices that it makes less than this many times smaller stay dense", at_least=1)


@dataclass(frozen=True, kw_only=True)
class QSGDConfig(Compressing, built_by="sync.compression.qsgd:build"):
    method: str = "qsgd"
    levels: int = key(127, "positive levels of an entry", at_least=1, at_most=127)


@dataclass(frozen=True, kw_only=True)
class TernGradConfig(Compressing, built_by="sync.compression.terngrad:build"):
    method: str = "terngrad"
    clip_factor: float = key(2.5, "clip at this many standard deviations; 0: do not", at_least=0)


@dataclass(frozen=True, kw_only=True)
class NaturalConfig(Compressing, built_by="sync.compression.natural:build"):
    method: str = "natural"


@dataclass(frozen=True, kw_only=True)
class OneBitConfig(Compressing, built_by="sync.compression.onebit:build"):
    dense_share: ClassVar[float] = 0.2
    has_error_feedback: ClassVar[bool] = True
    applies_momentum: ClassVar[bool] = True

    method: str = "onebit"


COMPRESSIONS = Methods(
    "compression",
    "method",
    "how gradients are sent",
    (
        CompressionConfig, FP16Config, BF16Config, TopKConfig, DGCConfig, PowerSGDConfig, QSGDConfig, TernGradConfig,
        OneBitConfig, NaturalConfig,
    ),
)  # fmt: skip
