"""The keys of each optimizer.

A method is a class here, its name in the table at the end, and the module that `built_by` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .checks import SIZES, key
from .method import Method, Methods

SCALINGS = ("linear", "sqrt")
LARS_VARIANTS = ("optax", "mlperf", "mlperf-unscaled", "tf-models-popular", "larc")
LAMB_VARIANTS = ("paper", "nvlamb", "v1")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Method, group="optimizer"):
    default_eps: ClassVar[float] = 0.0

    name: str = key("", "")
    learning_rate: float = key(1.0, "peak learning rate; for a batch of base_batch_size, if that is given", above=0)
    base_batch_size: int | None = key(
        None, "the peak is learning_rate scaled by batch_size / base_batch_size", at_least=1, below=SIZES
    )
    scaling: str = key(
        "linear", "how the peak grows with the batch: linear, or sqrt (its square root)", choices=SCALINGS
    )
    exclude: tuple[str, ...] | None = key(
        None,
        "patterns of variable paths without decay and trust ratio; null: biases and normalisation parameters",
        kind="patterns",
    )
    clip_norm: float | None = key(
        None, "largest global norm of the gradients; null: no clipping", at_least=1e-37, at_most=1e37
    )
    accumulate: int = key(
        1,
        "parts of a rank's batch that pass through the network one after the other, to save memory",
        at_least=1,
        below=SIZES,
    )

    @property
    def weight_decay(self) -> float:
        """Decay of the weights; 0 for an optimizer without the key."""
        return 0.0

    @property
    def exclude_ratio(self) -> Sequence[str] | None:
        """Patterns of variable paths without trust ratio; None: `exclude`."""
        return None

    @property
    def epsilon(self) -> float:
        """What is added to the denominator."""
        eps: float | None = getattr(self, "eps", None)
        return self.default_eps if eps is None else eps


@dataclass(frozen=True, kw_only=True)
class Momentum(OptimizerConfig):
    momentum: float = key(0.9, "decay of the velocity", at_least=0, below=1)
    nesterov: bool = key(False, "whether to look ahead along the velocity")


@dataclass(frozen=True, kw_only=True)
class Moments(OptimizerConfig):
    """Options of moving averages of gradients and of their squares."""

    beta_1: float = key(0.9, "decay of the average of gradients", at_least=0, below=1)
    beta_2: float = key(0.999, "decay of the average of their squares", at_least=0, below=1)
    eps: float | None = key(None, "added to the denominator; null: 1e-7", at_least=0)


@dataclass(frozen=True, kw_only=True)
class Decoupled(OptimizerConfig):
    """The decay of weights apart from the step."""

    weight_decay: float = key(0.0, "decoupled", at_least=0)


@dataclass(frozen=True, kw_only=True)
class Layerwise(OptimizerConfig):
    """Options of a step that is scaled layer by layer."""

    weight_decay: float = key(0.0, "added to the step before its norm is taken", at_least=0)
    exclude_ratio: tuple[str, ...] | None = key(
        None,
        "patterns of variable paths without trust ratio alone; null: those of exclude (nvlamb: none)",
        kind="patterns",
    )


@dataclass(frozen=True, kw_only=True)
class LARSConfig(Layerwise, Momentum, built_by="optimizers.lars:LARSRule.from_options"):
    name: str = "lars"
    variant: str | None = key(None, f"{', '.join(LARS_VARIANTS)}; null: optax", choices=LARS_VARIANTS)
    trust_coefficient: float = key(0.001, "eta of arXiv 1708.03888", above=0)
    eps: float | None = key(None, "added to the denominator; null: 0 (larc 1e-8)", at_least=0)

    @property
    def epsilon(self) -> float:
        return (1e-8 if self.variant == "larc" else 0.0) if self.eps is None else self.eps


@dataclass(frozen=True, kw_only=True)
class LAMBConfig(Layerwise, Moments, built_by="optimizers.lamb:LAMBRule.from_options"):
    default_eps: ClassVar[float] = 1e-6

    name: str = "lamb"
    variant: str | None = key(None, f"{', '.join(LAMB_VARIANTS)}; null: paper", choices=LAMB_VARIANTS)
    eps: float | None = key(None, "added to the denominator; null: 1e-6", at_least=0)


@dataclass(frozen=True, kw_only=True)
class SGDConfig(Decoupled, Momentum, built_by="optimizers.sgd:SGD.from_options"):
    name: str = "sgd"


@dataclass(frozen=True, kw_only=True)
class AdamConfig(Moments, built_by="optimizers.adam:AdamRule.from_options"):
    default_eps: ClassVar[float] = 1e-7

    name: str = "adam"


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(Decoupled, AdamConfig):
    name: str = "adamw"


@dataclass(frozen=True, kw_only=True)
class AdanConfig(Decoupled, built_by="optimizers.adan:AdanRule.from_options"):
    default_eps: ClassVar[float] = 1e-8

    name: str = "adan"
    beta_1: float = key(0.98, "decay of the average of gradients", at_least=0, below=1)
    beta_2: float = key(0.92, "decay of the average of their differences", at_least=0, below=1)
    beta_3: float = key(0.99, "decay of the average of squares", at_least=0, below=1)
    eps: float | None = key(None, "added to the denominator; null: 1e-8", at_least=0)


@dataclass(frozen=True, kw_only=True)
class OwnOptimizerConfig(Decoupled, Momentum, Moments, built_by="optimizers.build:user_optimizer"):
    """Options that a function of the user's reads; a class of Keras gets `weight_decay` and `options`."""

    options: Mapping[str, Any] = key(dict, "further arguments of the optimizer")


OPTIMIZERS = Methods(
    "optimizer",
    "name",
    "the optimizer, or one of your own or of Keras, such as keras.optimizers:Lion",
    (LARSConfig, LAMBConfig, SGDConfig, AdamConfig, AdamWConfig, AdanConfig),
    own=OwnOptimizerConfig,
)
