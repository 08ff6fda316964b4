"""Arguments have the names of the flags of the commands. Former names work, with a warning.

Tested in tests/sharding/building/test_memory_sources.py.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, ParamSpec, TypeVar

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean

P = ParamSpec("P")
Result = TypeVar("Result")
Options = TypeVar("Options")

# A field tells its unit; as `format` or `split` it would hide a built-in function or a property.
_FIELDS = {"format": "shard_format", "split": "splits", "shard_size": "shard_bytes", "memory": "memory_bytes"}


def options_of(kind: type[Options], options: Options | None, given: Mapping[str, Any]) -> Options:
    """Return options with some of them given by the names of their flags, or options of these alone.

    The name of a field whose flag has another gives a DeprecationWarning at the caller's caller.

    Raises:
        ConfigError: there is no such option, it is given twice, or a value violates its rule.
    """
    fields_by_name = field_names(kind)
    values: dict[str, Any] = {}
    for name, value in given.items():
        flag = next((flag for flag, field in fields_by_name.items() if name == field), name)
        if flag not in fields_by_name:
            hint = did_you_mean(name, list(fields_by_name), "see " + kind.__name__)
            raise ConfigError(f"there is no option {name!r}; {hint}")
        if fields_by_name[flag] in values:
            raise ConfigError(f"{flag} and {fields_by_name[flag]} are the same option; give {flag}")
        if name != flag:
            warn_of_former(name, flag, 3)
        values[fields_by_name[flag]] = value
    return kind(**values) if options is None else replace(options, **values)  # type: ignore[type-var]


def field_names(kind: type) -> dict[str, str]:
    """The fields of options by the names of their flags, with _ in place of -."""
    flags = {field: flag for flag, field in _FIELDS.items()}
    return {flags.get(field.name, field.name): field.name for field in fields(kind)}


def warn_of_former(name: str, now: str, stacklevel: int) -> None:
    """Warn that an argument is called otherwise now; `stacklevel` as of `warnings.warn`, seen from the caller."""
    warnings.warn(f"{name} is called {now} now, as its flag is", DeprecationWarning, stacklevel=stacklevel + 1)


def former_names(**names: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Decorate a function, or an `__init__`, whose arguments had other names, given as ``former="now"``.

    The function raises a TypeError if an argument is given by both names.

    >>> @former_names(memory_bytes="memory")
    ... def hold(*, memory: int = 1) -> int:
    ...     return memory
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     hold(memory_bytes=7)  # type: ignore[call-arg]
    7
    """

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def renamed(*args: P.args, **given: P.kwargs) -> Result:
            for name in names.keys() & given.keys():
                warn_of_former(name, names[name], 2)
                if names[name] in given:
                    raise TypeError(f"{names[name]} and {name} are the same argument; give {names[name]}")
                given[names[name]] = given.pop(name)
            return function(*args, **given)

        return renamed

    return decorate
