"""A user's own code, which a configuration names as `module:function`: its import, what it makes, and its errors.

Tested in tests/training/run/test_own_code.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ringfeed.sharding.errors import ConfigError, RingfeedError, TrainingError
from ringfeed.sharding.messages import one_line
from ringfeed.sharding.sources.user_code import describe_error, import_function

_EXAMPLES = {
    "callbacks": "my_callbacks:Log",
    "loss.name": "my_losses:hinge",
    "metrics": "my_metrics:gain",
    "model.name": "my_networks:build",
    "optimizer.name": "keras.optimizers:Lion",
    "schedule.name": "keras.optimizers.schedules:CosineDecay",
    "sync.method": "my_methods:SignSGD",
    "track.own": "my_trackers:Slack",
}
"""The keys that take `module:function`, each with an example for errors."""


def import_own(key: str, name: str) -> Any:
    """Import what a key names, a function or class, first from the working directory; or a ConfigError."""
    return import_function(key, name, str(Path.cwd()), example=_EXAMPLES[key])


@contextmanager
def own_code(key: str, name: str) -> Iterator[None]:
    """Raise a TrainingError with the place in a user's code, in one line, for an error of that code in the body.

    Errors of TensorFlow's operations pass through, such as for want of memory; wrong arguments are reported.
    """
    try:
        yield
    except (RingfeedError, MemoryError):
        raise
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        if "OpError" in kinds and "InvalidArgumentError" not in kinds:
            raise
        raise TrainingError(f"{key} {name}: {describe_error(error, name)}") from error


def own_object(key: str, name: str, make: Callable[[Any], Any], kind: Any, kind_name: str) -> Any:
    """Return what `make` makes of the function or class that a key names: an object of `kind`.

    A ConfigError says that there is no such function, or that it returns something else than `kind_name`; a
    TrainingError that it fails.
    """
    function = import_own(key, name)
    with own_code(key, name):
        made = make(function)
    if not isinstance(made, kind):
        raise ConfigError(f"{key}: {name} must return a {kind_name}, got {type(made).__name__}")
    return made


def made_by_class(function: Any, kind: type, key: str, name: str, options: Mapping[str, Any], **fixed: Any) -> Any:
    """Return an object of a class of `kind`, made of `fixed` and a user's options; None if `function` is no such class.

    A ConfigError says that the class refuses the options.
    """
    if not (isinstance(function, type) and issubclass(function, kind)):
        return None
    try:
        return function(**{**fixed, **options})
    except (TypeError, ValueError) as error:
        group = key.partition(".")[0]
        raise ConfigError(f"{group}.options: {name} refuses {dict(options)}: {one_line(error)}") from error
