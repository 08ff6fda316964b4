"""Applies functions to the batches of an epoch in a TensorFlow graph: the user's, or those of this package.

Tested in tests/pipeline/transforms/test_failing_record.py and tests/pipeline/test_loader_options.py.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ringfeed.sharding.common.validation import integer
from ringfeed.sharding.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow as tf

Transform: TypeAlias = Callable[[Any], Any]
Function = TypeVar("Function", bound=Callable[..., Any])

is_mapping: ContextVar[bool] = ContextVar("is_mapping", default=False)
"""Whether functions are traced in the body of `mapping`."""


@contextmanager
def mapping() -> Iterator[None]:
    """Let transforms that are traced in the body use operations of ours, as their graphs stay in this process."""
    token = is_mapping.set(True)
    try:
        yield
    finally:
        is_mapping.reset(token)


def unconverted(function: Function) -> Function:
    """Mark a function in plain TensorFlow operations, which AutoGraph would take a second to look through."""
    import tensorflow as tf

    marked: Function = tf.autograph.experimental.do_not_convert(function)
    return marked


_NO_ELEMENT = ("Unsupported return value from function", "Length for attr 'output_")  # in TensorFlow's messages


def require_feature(element: Mapping[str, Any], name: str) -> None:
    """Check that an element has a feature; raises a ConfigError if it has not."""
    if name not in element:
        raise ConfigError(f"the element has no feature {name!r}; it has: {', '.join(sorted(element))}")


def add_features(element: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """An element with new features; raises a ConfigError if it already has a feature of that name."""
    for name in new:
        if name in element:
            raise ConfigError(f"the element already has a feature {name!r}, which this transform adds; rename it")
    return {**element, **new}


class GraphTransform(ABC):
    """A function of an element in plain TensorFlow operations, which AutoGraph leaves as they are.

    So errors about its arguments reach the user unchanged.
    """

    __slots__ = ("__weakref__",)  # tf.function needs it

    @abstractmethod
    def __call__(self, element: Mapping[str, Any]) -> dict[str, Any]:
        """Return the element changed."""


def apply_transform(
    dataset: tf.data.Dataset, transform: Transform | Sequence[Transform], num_parallel_calls: int | None
) -> tuple[tf.data.Dataset, list[Transform]]:
    """Map a dataset of batches in order, several batches at a time.

    Args:
        dataset: the batches of a loader.
        transform: a function of one element, or several; each receives what the one before returned.
        num_parallel_calls: batches to work on at a time; default: one for each core of this process, or one alone under
            `tf.config.experimental.enable_op_determinism`, where tf.data prints an error if asked for more.

    Returns:
        The mapped dataset, and the list of functions.

    Raises:
        ConfigError: `num_parallel_calls` is less than 1, or `transform` is no function or returns no element.
    """
    import tensorflow as tf

    from ringfeed.pipeline.deliver.generator_dataset import is_op_determinism_enabled  # needs TensorFlow

    cores = 1 if is_op_determinism_enabled() else len(os.sched_getaffinity(0))
    calls = cores if num_parallel_calls is None else integer("num_parallel_calls", num_parallel_calls, 1)
    given: Any = transform
    functions = [given] if callable(given) or not isinstance(given, Iterable) else list(given)
    if not all(map(callable, functions)):
        raise ConfigError(f"transform must be a function of one element, or several, got {transform!r}")
    for function in functions:
        plain = unconverted(function) if isinstance(function, GraphTransform) else function
        try:
            with mapping():
                dataset = dataset.map(plain) if calls == 1 else dataset.map(plain, calls, deterministic=True)
        except (TypeError, tf.errors.InvalidArgumentError) as error:
            if not any(sign in str(error) for sign in _NO_ELEMENT):
                raise
            raise ConfigError(
                f"transform {getattr(function, '__name__', function)!r} must return the element changed: tensors, in a "
                "dict or a tuple; what it returned holds none, or something else, such as None"
            ) from error
    return dataset, functions
