"""Sources in memory: their records are written to a folder beside the spill files, which all workers read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from ringfeed.sharding.destination.dataset_draft import check_spill_outside
from ringfeed.sharding.destination.spill import side_folder, spill_root
from ringfeed.sharding.sources.records.in_memory import is_in_memory, write_records
from ringfeed.sharding.sources.tables.memory import MemoryRecords


class _Options(Protocol):
    @property
    def source(self) -> Any: ...
    @property
    def destination(self) -> str: ...
    @property
    def spill(self) -> str | None: ...


Options = TypeVar("Options", bound=_Options)


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
