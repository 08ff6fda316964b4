"""Optimizers as pure rules, and the Keras optimizer that applies any of them.

An update of 200 small variables costs the time of its operations, not of its arithmetic. So variables of one shape are
stacked, updated as one tensor, and written back: the same arithmetic, with the same bits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

import keras
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.optimizers import OPTIMIZERS

from .keras_doors import Tensor, Variable, require_method, variable_index
from .norms import is_adapted

Slots = Sequence[Tensor]
Options = TypeVar("Options")

STACKED_ELEMENTS = 16384
"""Copies of larger variables would cost more than the operations that stacks save."""


def make_options(kind: type[Options], optimizer: str, arguments: Mapping[str, Any]) -> Options:
    """Return the options of a rule, of the class `kind`, from the arguments of its optimizer.

    A ValueError that begins with the optimizer's name says that an argument is out of its range.
    """
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    try:
        return kind(**values)
    except ConfigError as error:
        raise ValueError(str(error).replace("optimizer.", f"{optimizer}: ", 1)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStep:
    """What a step of a stack of variables depends on, beside their values: see `RuleOptimizer`."""

    rate: Tensor  # the learning rate, a scalar of the stack's dtype
    number: Tensor  # steps done before this one, int64 scalar
    decays: bool = True  # whether these variables have weight decay
    adapts: bool = True  # whether they have a trust ratio
    # What was computed for other variables of the dtype in this step, by name
    known: dict[str, Tensor] = field(default_factory=dict)

    def once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return what `compute` returns, which it does once for all variables of the dtype."""
        if name not in self.known:
            self.known[name] = compute()
        return self.known[name]


@dataclass(frozen=True)
class Rule(ABC):
    """The rule of an optimizer, as a pure function of weights, gradient and slots.

    Raises:
        ValueError: an argument is out of its range.
    """

    options: Any  # the keys of the optimizer, from `config.optimizers`

    keras_name: ClassVar[str]
    slots: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    """Per-variable state, by name: the leading shape beside the variable's own."""

    @classmethod
    def from_options(cls, options: Any, schedule: Any, freeze_step: int | None = None) -> RuleOptimizer:
        """Return the Keras optimizer of a configuration's options; `freeze_step` is Adam's."""
        return RuleOptimizer(schedule, cls(options))

    @abstractmethod
    def updated(self, weights: Tensor, gradient: Tensor, slots: Slots, step: RuleStep) -> tuple[Tensor, Slots]:
        """Return the next weights and slots of a stack of variables.

        Args:
            weights, gradient: [variables, ...].
            slots: `slots`, [variables, *shape beside the variables', ...].
        """

    @property
    def exclude_ratio(self) -> Sequence[str] | None:
        """Patterns of the paths without trust ratio; None: `options.exclude`."""
        patterns: Sequence[str] | None = self.options.exclude_ratio
        return patterns

    @property
    def needs_all_gradients(self) -> bool:
        """Whether `prepared` changes gradients."""
        return False

    def prepared(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Change all gradients of a step together, before they are stacked."""
        return gradients

    def update_in_place(self, weights: Variable, gradient: Tensor, slots: Sequence[Variable], step: RuleStep) -> bool:
        """Update one variable by a kernel of TensorFlow's and return True; False: there is none."""
        return False


@keras.saving.register_keras_serializable(package="ringfeed", name="RuleOptimizer")
class RuleOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras ships no types
    """A Keras optimizer that applies a rule; its name is the rule's, unless it is given another one.

    All arithmetic and the slots are float32 (float64 for float64 variables), whatever the gradient's dtype.

    >>> from ringfeed.training.config.optimizers import LARSConfig
    >>> from ringfeed.training.optimizers.lars import LARSRule
    >>> w = keras.Variable([[3.0, 4.0]])
    >>> RuleOptimizer(1.0, LARSRule(LARSConfig(trust_coefficient=0.1))).apply([tf.constant([[0.0, 2.0]])], [w])
    >>> [round(float(x), 6) for x in w.numpy()[0]]
    [3.0, 3.5]
    """

    updates_own_replica = False
    """Whether it updates the variables of the calling replica: see `update_own_replica`."""

    def __init__(self, learning_rate: Any, rule: Rule, name: str | None = None) -> None:
        # Keras' own weight_decay is decoupled (it bypasses the trust ratio and the momentum), so the base gets none.
        require_method(keras.optimizers.Optimizer, "_backend_update_step")
        super().__init__(learning_rate=learning_rate, name=name or rule.keras_name)
        self.rule = rule

    def build(self, variables: Sequence[Variable]) -> None:
        """Create the slots of each variable, and note its masks."""
        if self.built:
            return
        super().build(variables)
        rule, exclude = self.rule, self.rule.options.exclude
        self._slots = [
            [
                self.add_variable(
                    shape=(*shape, *v.shape),
                    dtype=_compute_dtype(v.dtype),
                    name=f"{v.path.replace('/', '_')}_{slot}",
                )
                for v in variables
            ]
            for slot, shape in rule.slots.items()
        ]
        ratio = exclude if rule.exclude_ratio is None else rule.exclude_ratio
        self._decays = [is_adapted(v.path, v.shape, exclude) for v in variables]
        self._adapts = [is_adapted(v.path, v.shape, ratio) for v in variables]

    def slots_of(self, variable: Variable) -> list[Variable]:
        """Return the slots of a variable, in the order of the rule's."""
        index = variable_index(self, variable)
        return [slot[index].value for slot in self._slots]

    def _backend_update_step(self, grads: Sequence[Tensor], trainable_variables: Any, learning_rate: Tensor) -> None:
        """Apply one step to all variables, in stacks (called by Keras); one by one under a `tf.distribute` strategy."""
        is_spread = tf.distribute.has_strategy()
        if is_spread and not self.updates_own_replica:
            if self.rule.needs_all_gradients:  # Keras sums them over replicas later, and hands them over one by one
                raise ValueError(
                    f"{self.name}: this variant needs all gradients together, which a tf.distribute strategy "
                    "does not give: choose another variant, or train on a Horovod ring"
                )
            super()._backend_update_step(grads, trainable_variables, learning_rate)
            return
        steps = self._steps(learning_rate)
        stacks: dict[Any, list[tuple[Variable, Tensor]]] = {}
        for variable, gradient in zip(trainable_variables, self.rule.prepared(grads), strict=True):
            if not is_spread and self._is_updated_in_place(variable, gradient, steps(variable)):
                continue
            index = variable_index(self, variable)
            key = (tuple(variable.shape), str(variable.dtype), self._decays[index], self._adapts[index])
            is_small = math.prod(variable.shape) <= STACKED_ELEMENTS
            stacks.setdefault(key if is_small else (*key, index), []).append((variable, gradient))
        for pairs in stacks.values():
            variables, gradients = zip(*pairs, strict=True)
            self._update_stack(variables, gradients, steps(variables[0]))

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Tensor) -> None:
        """Apply one step to one variable (called by Keras under a `tf.distribute` strategy)."""
        self._update_stack([variable], [gradient], self._steps(learning_rate)(variable))

    def _steps(self, rate: Tensor) -> Callable[[Variable], RuleStep]:
        """Return the function that gives the present step of a variable."""
        known: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}

        def step_of(variable: Variable) -> RuleStep:
            index, dtype = variable_index(self, variable), _compute_dtype(variable.dtype)
            if dtype not in known:
                known[dtype] = tf.cast(rate, dtype), {}
            cast, shared = known[dtype]
            decays, adapts = self._decays[index], self._adapts[index]
            return RuleStep(rate=cast, number=self.iterations.value, decays=decays, adapts=adapts, known=shared)

        return step_of

    def _is_updated_in_place(self, variable: Variable, gradient: Tensor, step: RuleStep) -> bool:
        weights = tensorflow_variable(variable)
        if weights.dtype != step.rate.dtype:
            return False
        return self.rule.update_in_place(weights, gradient, self.slots_of(variable), step)

    def _update_stack(self, variables: Sequence[Variable], gradients: Sequence[Tensor], step: RuleStep) -> None:
        dtype = step.rate.dtype
        kept = list(zip(*(self.slots_of(variable) for variable in variables), strict=True))
        weights, slots = self.rule.updated(
            tf.cast(tf.stack([tf.convert_to_tensor(v) for v in variables]), dtype),
            tf.cast(tf.stack([tf.convert_to_tensor(gradient) for gradient in gradients]), dtype),
            [tf.stack([tf.convert_to_tensor(v) for v in slot]) for slot in kept],
            step,
        )
        for targets, values in zip([*kept, variables], [*slots, weights], strict=True):
            for target, value in zip(targets, tf.unstack(values, num=len(variables)), strict=True):
                self.assign(target, value)

    def get_config(self) -> dict[str, Any]:
        base, options = super().get_config(), self.rule.options
        given = {spec.name: getattr(options, spec.name) for spec in fields(options)}
        kept = {"learning_rate": base["learning_rate"], "name": base["name"]}
        kept["freeze_step"] = getattr(self.rule, "freeze_step", None)
        return {**kept, "options": {key: list(v) if isinstance(v, tuple) else v for key, v in given.items()}}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        rate, options = config["learning_rate"], OPTIMIZERS.made(config["options"])
        if isinstance(rate, dict):
            rate = keras.saving.deserialize_keras_object(rate, custom_objects=custom_objects)
        made = options.builder()(options, rate, config["freeze_step"])
        made.name = config["name"]
        return made


def tensorflow_variable(variable: Variable) -> Any:
    """Return the `tf.Variable` of one of Keras, or the same one again."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def next_moments(options: Any, gradient: Tensor, before: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the moving averages of gradients and of their squares after a gradient."""
    first = options.beta_1 * before[0] + (1 - options.beta_1) * gradient
    return first, options.beta_2 * before[1] + (1 - options.beta_2) * gradient * gradient


def correction(beta: float, number: Tensor, last: int | None = None) -> Tensor:
    """Return `1 - beta ** t`, where step t counts from 1, up to `last`; float64.

    float32 would lose digits of it in the first steps.

    >>> float(correction(0.5, tf.constant(1, tf.int64)))
    0.75
    """
    step = tf.cast(number + 1, tf.float64)
    step = step if last is None else tf.minimum(step, tf.cast(last, tf.float64))
    return -tf.math.expm1(step * tf.math.log(tf.constant(beta, tf.float64)))


def _compute_dtype(dtype: Any) -> str:
    name = keras.backend.standardize_dtype(dtype)
    return "float64" if name == "float64" else "float32"
