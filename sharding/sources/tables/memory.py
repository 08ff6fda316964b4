"""Records that were in memory: an Arrow IPC file of them in the spill folder, which all workers read.

Tested in tests/sharding/building/test_memory_sources.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources.base import NO_FEATURES, Part

from .ipc import IpcSource


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecords:
    """Records that were in memory, and their file; its text names them in messages and manifests."""

    name: str  # what they were, a URL's place in messages
    url: str  # path or URL of the file
    fingerprint: str  # hash of their content

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource(IpcSource):
    """A source of `MemoryRecords`. Its paths are their name: equal records give equal messages and `rejected.jsonl`."""

    kind: ClassVar[str] = "Arrow"
    suffixes: ClassVar[tuple[str, ...]] = ()

    file: str = ""  # path or URL of the file

    @classmethod
    def open_records(
        cls,
        records: MemoryRecords,
        label: str | None,
        features: Mapping[str, Feature] = NO_FEATURES,
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> MemorySource:
        """Open the file of some records; see `open_source`."""
        opened = cls.open(records.url, label, features, wanted)
        return replace(
            opened,
            url=records.name,
            parts=tuple(replace(part, path=records.name) for part in opened.parts),
            fingerprint=records.fingerprint,
            file=records.url,
        )

    @property
    def cuts(self) -> str:
        """A hash of the cuts between the parts, which equal records may have elsewhere: their spill files differ."""
        return f"-{derive_key(*(str(part.pieces) for part in self.parts)):016x}"

    def read(self, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read the record batches as they were written."""
        return IpcSource.read(self, replace(part, path=self.file), columns)
