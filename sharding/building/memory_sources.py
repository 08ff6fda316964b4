"""Sources in memory: their records are written to a folder beside the spill files, which all workers read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from ringfeed.sharding.destination.dataset_draft import check_spill_outside
from ringfeed.sharding.destination.spill import side_folder, spill_root
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean
from ringfeed.sharding.sources.records.in_memory import is_in_memory, write_records
from ringfeed.sharding.sources.tables.memory import MemoryRecords


class _Options(Protocol):
    @property
    def source(self) -> Any: ...
    @property
    def destination(self) -> str: ...
    @property
    def spill(self) -> str | None: ...


# Arguments have the names of the flags; a field tells its unit, or would hide a built-in function or a property.
_FIELDS = {"format": "shard_format", "split": "splits", "shard_size": "shard_bytes", "memory": "memory_bytes"}

Options = TypeVar("Options", bound=_Options)


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
            warnings.warn(f"{name} is called {flag} now, as its flag is", DeprecationWarning, stacklevel=3)
        values[fields_by_name[flag]] = value
    return kind(**values) if options is None else replace(options, **values)  # type: ignore[type-var]


def field_names(kind: type) -> dict[str, str]:
    """The fields of options by the names of their flags, with _ in place of -."""
    flags = {field: flag for flag, field in _FIELDS.items()}
    return {flags.get(field.name, field.name): field.name for field in fields(kind)}


@contextmanager
def spilled_source(options: Options) -> Iterator[Options]:
    """Yield options whose source workers can read: records in memory are in a file until the body ends.

    Raises:
        SourceError: there are no records, or no column can hold their values.
        StorageError: the spill folder cannot be written.
    """
    if isinstance(options.source, MemoryRecords) or not is_in_memory(options.source):
        yield options
        return
    check_spill_outside(options.spill, options.destination)
    with side_folder(spill_root(options.spill, options.destination)) as folder:
        yield replace(options, source=write_records(options.source, folder))  # type: ignore[type-var]
