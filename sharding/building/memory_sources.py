"""Sources in memory: their records are written to a folder beside the spill files, which all workers read."""

from __future__ import annotations

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


_FORMAT = ("format", "shard_format")  # the flag, and the field, which would hide a built-in function of Python

Options = TypeVar("Options", bound=_Options)


def options_of(kind: type[Options], options: Options | None, given: Mapping[str, Any]) -> Options:
    """Return options with some fields given by name, or options of these fields alone.

    Raises:
        ConfigError: a name is no field, or a value violates its rule.
    """
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # options are dataclasses
    flag, field_name = _FORMAT
    if flag in given and field_name in names:
        if field_name in given:
            raise ConfigError(f"{flag} and {field_name} are the same option; give one")
        given = {field_name if name == flag else name: value for name, value in given.items()}
    for name in given:
        if name not in names:
            raise ConfigError(f"there is no option {name!r}; {did_you_mean(name, names, 'see ' + kind.__name__)}")
    return kind(**given) if options is None else replace(options, **given)  # type: ignore[type-var]


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
