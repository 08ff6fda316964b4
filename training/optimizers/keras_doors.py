"""What ringfeed uses or replaces inside Keras and TensorFlow, where they have no public way.

A version that lacks it is refused by name. No other module reaches for an attribute of theirs that begins with `_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.errors import TrainingError

DOORS = {
    "_apply_weight_decay": "in whose place ringfeed decays the variables of one replica alone",
    "_backend_update_step": "in whose place ringfeed updates small variables together, and one replica's alone",
    "_flatten_layers": "by which ringfeed finds the layers within layers",
    "_get_call_context": "by which ringfeed knows whether a layer trains",
    "_get_variable_index": "by which ringfeed finds what an optimizer keeps for a variable",
    "_moments": "in whose place ringfeed normalises batches over the samples of all ranks",
    "_use_weight_decay": "by which ringfeed knows the variables that an optimizer decays",
}
"""The methods, each with the reason."""

Tensor = Any
Variable = Any
"""Keras and TensorFlow ship no types."""


def require_method(owner: Any, name: str) -> Callable[..., Any]:
    """Return a method of `DOORS`, or raise a TrainingError that names the version of Keras."""
    method = getattr(owner, name, None)
    if not callable(method):
        kind = owner.__name__ if isinstance(owner, type) else type(owner).__name__
        raise _missing(f"{kind}.{name}", DOORS[name])
    found: Callable[..., Any] = method
    return found


def _missing(name: str, reason: str) -> TrainingError:
    return TrainingError(f"keras {keras.__version__} has no {name}, {reason}: install an earlier keras")


def replace_method(owner: Any, name: str, method: Callable[..., Any]) -> None:
    """Replace a method of `DOORS` of one object. A version of Keras that lacks it would never call the new one."""
    require_method(owner, name)
    setattr(owner, name, method)


def subclassed(owner: Any, **members: Any) -> None:
    """Give one object other members by a class of its own, so that what it saves, and its class's name, stay.

    An attribute of the object would be saved with it by `pickle`.
    """
    plain = type(owner)
    owner.__class__ = type(
        plain.__name__, (plain,), {**members, "__module__": plain.__module__, "__doc__": plain.__doc__}
    )


# -- layers and tensors ----------------------------------------------------------------------------------------------


def inner_layers(network: Any) -> list[Any]:
    """Return the layers of a network, and the layers within them."""
    return list(require_method(network, "_flatten_layers")(include_self=False))


def is_training(layer: Any) -> bool:
    """Return whether a layer, in its `call`, is told to train."""
    return bool(require_method(layer, "_get_call_context")().get_value("training"))


def producer(tensor: Any) -> tuple[Any, Sequence[Any]]:
    """Return the layer that made a symbolic tensor, and the tensors that it was made from."""
    try:
        history = tensor._keras_history
        return history.operation, history.operation._inbound_nodes[history.node_index].input_tensors
    except AttributeError as error:
        raise _missing(f"KerasTensor history ({error})", "by which ringfeed finds the last layers") from error


# -- optimizers and variables ----------------------------------------------------------------------------------------


def variable_index(optimizer: Any, variable: Variable) -> int:
    """Return the place of a variable in an optimizer."""
    return int(require_method(optimizer, "_get_variable_index")(variable))


def copies(variable: Variable) -> list[Variable]:
    """Return a variable's copies, one of each replica; the variable alone if there are no replicas."""
    inner = getattr(variable, "_value", variable)  # the `tf.distribute` variable of one of Keras
    return list(getattr(inner, "values", None) or [variable])


def assign_all(variables: Iterable[Variable], values: Iterable[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def update_own_replica(optimizer: Any) -> None:
    """Let an optimizer update the variables of the replica that calls it, from gradients that are already reduced.

    Under a strategy of `tf.distribute` Keras would sum the gradients again, and leave the replica for the update, which
    a branch of a graph cannot.
    """

    def update(gradients: Sequence[Tensor], variables: Sequence[Variable], rate: Tensor) -> None:
        for gradient, variable in zip(gradients, variables, strict=True):
            optimizer.update_step(gradient, variable, rate)

    def decay(variables: Sequence[Variable]) -> None:
        for variable in variables if optimizer.weight_decay is not None else ():
            if require_method(optimizer, "_use_weight_decay")(variable):
                rate = tf.cast(optimizer.learning_rate, variable.dtype)
                variable.assign_sub(variable * rate * tf.cast(optimizer.weight_decay, variable.dtype))

    if hasattr(optimizer, "updates_own_replica"):  # one by a rule
        optimizer.updates_own_replica = True
    else:
        replace_method(optimizer, "_backend_update_step", update)
        replace_method(optimizer, "_apply_weight_decay", decay)


# -- Python functions of another process -----------------------------------------------------------------------------


def function_token(number: int) -> str:
    """Return the token by which `tf.raw_ops.PyFunc` finds a Python function in whatever process runs it."""
    return f"pyfunc_{number}"


def declare_functions(functions: Sequence[Callable[..., Any]]) -> tf.Graph:
    """Give functions the tokens 0, 1, ... of this process; they live as long as the graph that is returned.

    TensorFlow counts the tokens up in each process. A TrainingError says that something has declared functions before,
    or that TensorFlow names them otherwise.
    """
    graph = tf.Graph()
    with graph.as_default():
        for number, function in enumerate(functions):
            tensor = tf.numpy_function(function, [], [tf.bool])[0]
            if tensor.op.get_attr("token") != function_token(number).encode():
                raise TrainingError(
                    f"TensorFlow {tf.__version__} names Python functions otherwise than ringfeed expects: install an "
                    "earlier tensorflow"
                )
    return graph
