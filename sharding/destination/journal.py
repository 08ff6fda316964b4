"""The journal of a build: which shards are finished, so that a killed build can resume.

An entry lists consecutive shards that are complete at the destination. Entries are keyed by the plan's fingerprint;
those of other plans are ignored. The journal is removed when the dataset is committed.
Tested in tests/sharding/building/test_resume.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.dataset.manifest import ShardInfo
from ringfeed.sharding.dataset.statistics import FeatureStatistics
from ringfeed.sharding.errors import RingfeedError
from ringfeed.sharding.storage.file_contents import FileInfo
from ringfeed.sharding.storage.storage import Storage

JOURNAL_FOLDER = "_building"
_READERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """A shard that was written."""

    number: int  # position among the shards of all splits
    info: ShardInfo  # entry of the shard table
    statistics: Mapping[str, FeatureStatistics]  # by feature name
    dali: FileInfo | None = None  # index file for DALI, if any

    @property
    def files(self) -> dict[str, FileInfo]:
        """Files for other programs, by path."""
        return {} if self.dali is None else {self.info.dali_path: self.dali}

    @property
    def all_files(self) -> dict[str, FileInfo]:
        """All files written for the shard, by path."""
        return self.info.files | self.files


def record_shards(storage: Storage, fingerprint: str, results: Iterable[ShardResult]) -> None:
    """Write an entry for finished shards; call it once their files are durable."""
    entries = [_entry(result) for result in results]
    body = json.dumps(entries).encode()
    name = f"{JOURNAL_FOLDER}/{fingerprint}/{entries[0]['number']:06d}-{entries[-1]['number']:06d}.json"
    entry = json.dumps({"checksum": checksum(body), "shards": entries})
    storage.write(name, entry.encode(), durable=False)  # a lost or damaged entry only costs time


def read_journal(storage: Storage, fingerprint: str, sizes: Mapping[str, int]) -> dict[int, ShardResult]:
    """Return the shards of a plan that an earlier build finished and whose files have the recorded sizes.

    On local disk checksums are compared, too: reading the files costs little compared with writing them again.

    Returns:
        Results by shard number.
    """
    names = [name for name in sizes if name.startswith(f"{JOURNAL_FOLDER}/{fingerprint}/")]
    with ThreadPoolExecutor(_READERS) as pool:
        entries = [entry for results in pool.map(lambda name: _read(storage, name), names) for entry in results]
        whole = pool.map(lambda entry: _is_whole(storage, entry, sizes), entries)
        return {entry.number: entry for entry, good in zip(entries, whole, strict=True) if good}


def count_recorded(storage: Storage, fingerprint: str) -> int:
    """Count the recorded shards of a plan, by the names of the entries alone."""
    entry = re.compile(rf"{JOURNAL_FOLDER}/{fingerprint}/(\d+)-(\d+)\.json")
    runs = [map(int, match.groups()) for name in storage.list() if (match := entry.fullmatch(name))]
    return len({number for first, last in runs for number in range(first, last + 1)})  # entries may overlap


def _read(storage: Storage, name: str) -> list[ShardResult]:
    try:
        value = json.loads(storage.read(name))
        if checksum(json.dumps(value["shards"]).encode()) != value["checksum"]:
            return []
        return [_result(entry) for entry in value["shards"]]
    except (ValueError, KeyError, TypeError, FileNotFoundError):
        return []  # useless: its shards are written again


def _entry(result: ShardResult) -> dict[str, Any]:
    entry = asdict(replace(result, info=replace(result.info, class_counts=()), statistics={}))
    entry["info"]["class_counts"] = list(result.info.class_counts)
    return entry | {"statistics": {name: each.to_json() for name, each in result.statistics.items()}}


def _result(entry: Mapping[str, Any]) -> ShardResult:
    info = entry["info"] | {"class_counts": ClassCounts(entry["info"]["class_counts"])}
    statistics = {name: FeatureStatistics.from_json(value) for name, value in entry["statistics"].items()}
    index = entry["dali"]
    return ShardResult(
        number=entry["number"],
        info=ShardInfo(**info),
        statistics=statistics,
        dali=None if index is None else FileInfo(**index),
    )


def _is_whole(storage: Storage, result: ShardResult, sizes: Mapping[str, int]) -> bool:
    for path, expected in result.all_files.items():
        if sizes.get(path) != expected.bytes:
            return False
        if storage.local_path is not None:
            try:
                if checksum(storage.map(path)) != expected.checksum:
                    return False
            except (FileNotFoundError, RingfeedError):
                return False
    return True
