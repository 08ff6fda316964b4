"""The base of optimizers that update small variables of one shape together.

An update of 200 small variables costs the time of its operations, not of its arithmetic. So variables of one shape are
stacked, updated as one tensor, and written back: the same arithmetic, with the same bits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from .masks import is_adapted

__all__ = ["StackedOptimizer", "check_argument", "tensorflow_variable"]

Tensor = Any
Variable = Any

STACKED_ELEMENTS = 16384  # of larger variables the copies would cost more than the operations that they save


def check_argument(optimizer: str, name: str, value: float, rule: str, holds: bool) -> None:
    """Raise a ValueError if an argument of an optimizer breaks its rule."""
    if not holds:
        raise ValueError(f"{optimizer}: {name} must be {rule}, got {value!r}")


def tensorflow_variable(variable: Variable) -> Any:
    """Return the `tf.Variable` of one of Keras, or the same one again."""
    return variable if isinstance(variable, tf.Variable) else variable.value


class StackedOptimizer(keras.optimizers.Optimizer, ABC):  # type: ignore[misc]  # Keras ships no types
    """A Keras optimizer whose rule sees stacks of variables: see `updated`.

    All arithmetic and the slots are float32 (float64 for float64 variables), whatever the gradient's dtype.

    Args:
        learning_rate: a float, a `LearningRateSchedule`, or a callable without arguments.
        name: the optimizer's name.
        exclude: regular expressions of the paths without weight decay and trust ratio; `None` leaves out variables
            of fewer than two dimensions.
        exclude_ratio: the same for the trust ratio alone; `None`: those of `exclude`.
    """

    slots: tuple[tuple[str, tuple[int, ...]], ...] = ()  # what is kept for each variable: name, shape beside its own
    layer_slots: tuple[tuple[str, tuple[int, ...]], ...] = ()  # the same, of each variable as a whole
    needs_all_gradients = False  # whether `prepared` does something
    updates_own_replica = False  # see `update_own_replica`

    def __init__(
        self,
        learning_rate: Any,
        name: str,
        exclude: Sequence[str] | None,
        exclude_ratio: Sequence[str] | None,
    ) -> None:
        # Keras' own weight_decay is decoupled (it bypasses the trust ratio and the momentum), so the base gets none.
        super().__init__(learning_rate=learning_rate, name=name)
        self.exclude = None if exclude is None else list(exclude)
        self.exclude_ratio = None if exclude_ratio is None else list(exclude_ratio)

    @abstractmethod
    def updated(
        self, weights: Tensor, gradient: Tensor, slots: Sequence[Tensor], rate: Tensor, *, decays: bool, adapts: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the next weights and slots of a stack of variables.

        Args:
            weights, gradient: [variables, ...].
            slots: those of `slots`, [variables, *shape beside the variables', ...], then of `layer_slots`, [variables,
                *shape].
            rate: the learning rate, a scalar.
            decays: whether these variables have weight decay.
            adapts: whether they have a trust ratio.
        """

    def prepared(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Change all gradients of a step together, before they are stacked."""
        return gradients

    def build(self, variables: Sequence[Variable]) -> None:
        """Create the slots of each variable, and note its masks."""
        if self.built:
            return
        super().build(variables)
        kinds = [(slot, shape, True) for slot, shape in self.slots]
        kinds += [(slot, shape, False) for slot, shape in self.layer_slots]
        self._slots = [
            [
                self.add_variable(
                    shape=(*shape, *v.shape) if has_entries else shape,
                    dtype=_compute_dtype(v.dtype),
                    name=f"{v.path.replace('/', '_')}_{slot}",
                )
                for v in variables
            ]
            for slot, shape, has_entries in kinds
        ]
        ratio = self.exclude if self.exclude_ratio is None else self.exclude_ratio
        self._decays = [is_adapted(v.path, v.shape, self.exclude) for v in variables]
        self._adapts = [is_adapted(v.path, v.shape, ratio) for v in variables]

    def _backend_update_step(self, grads: Sequence[Tensor], trainable_variables: Any, learning_rate: Tensor) -> None:
        """Apply one step to all variables, in stacks (called by Keras); one by one under a `tf.distribute` strategy."""
        if tf.distribute.has_strategy() and not self.updates_own_replica:
            if self.needs_all_gradients:  # Keras sums them over replicas later, and hands them over one by one
                raise ValueError(
                    f"{self.name}: this variant needs all gradients together, which a tf.distribute strategy "
                    "does not give: choose another variant, or train on a Horovod ring"
                )
            super()._backend_update_step(grads, trainable_variables, learning_rate)
            return
        stacks: dict[Any, list[tuple[Variable, Tensor]]] = {}
        for variable, gradient in zip(trainable_variables, self.prepared(grads), strict=True):
            index = self._get_variable_index(variable)
            key = (tuple(variable.shape), str(variable.dtype), self._decays[index], self._adapts[index])
            is_small = math.prod(variable.shape) <= STACKED_ELEMENTS
            stacks.setdefault(key if is_small else (*key, index), []).append((variable, gradient))
        for pairs in stacks.values():
            self._update_stack([variable for variable, _ in pairs], [gradient for _, gradient in pairs], learning_rate)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, for Keras to save and restore."""
        base = super().get_config()
        return {
            "name": base["name"],
            "learning_rate": base["learning_rate"],
            "exclude": self.exclude,
            "exclude_ratio": self.exclude_ratio,
        }

    def update_step(self, gradient: Tensor, variable: Variable, learning_rate: Tensor) -> None:
        """Apply one step to one variable (called by Keras under a `tf.distribute` strategy)."""
        self._update_stack([variable], [gradient], learning_rate)

    def _update_stack(self, variables: Sequence[Variable], gradients: Sequence[Tensor], learning_rate: Tensor) -> None:
        places = [self._get_variable_index(variable) for variable in variables]
        dtype = tf.as_dtype(_compute_dtype(variables[0].dtype))
        kept = [[slot[place].value for place in places] for slot in self._slots]
        weights, slots = self.updated(
            tf.cast(tf.stack([tf.convert_to_tensor(v) for v in variables]), dtype),
            tf.cast(tf.stack([tf.convert_to_tensor(gradient) for gradient in gradients]), dtype),
            [tf.stack([tf.convert_to_tensor(v) for v in slot]) for slot in kept],
            tf.cast(learning_rate, dtype),
            decays=self._decays[places[0]],
            adapts=self._adapts[places[0]],
        )
        for targets, values in zip([*kept, variables], [*slots, weights], strict=True):
            for target, value in zip(targets, tf.unstack(values, num=len(variables)), strict=True):
                self.assign(target, value)


def _compute_dtype(dtype: Any) -> str:
    name = keras.backend.standardize_dtype(dtype)
    return "float64" if name == "float64" else "float32"
