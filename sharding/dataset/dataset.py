"""Opens a finished dataset and reads its records."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.errors import CorruptionError, DatasetError, StorageError
from ringfeed.sharding.formats.example_decode import decode_examples
from ringfeed.sharding.formats.parquet import iterate_parquet
from ringfeed.sharding.formats.tfrecord import HEADER_BYTES, decompress, iterate_records
from ringfeed.sharding.schema import Schema
from ringfeed.sharding.storage.lease import LEASE_NAME
from ringfeed.sharding.storage.storage import Storage, StorageLike, as_storage
from ringfeed.sharding.storage.untrusted_files import guarded

from .consistency import check_manifest, check_shards, corruption_errors
from .damage import content_problem
from .file_names import ALL_NAMES, MANIFEST_NAME, OWN_FOLDER, FileNames, salvaged_name
from .manifest import Manifest, ShardInfo
from .own_folder import holds_dataset, is_own_folder, read_manifest
from .shard_table import decode_shards

_DECODED_RECORDS = 64  # at a time: one is decoded in 10 us among them, in 100 us alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """An open dataset: its folder, its manifest and its shards.

    >>> from ringfeed.sharding import open_dataset
    >>> dataset = open_dataset("flights")
    >>> dataset.manifest.records, len(dataset.shards)
    (400, 5)
    """

    storage: Storage
    manifest: Manifest
    shards: tuple[ShardInfo, ...]

    def split_shards(self, split: str) -> tuple[ShardInfo, ...]:
        """Return the shards of one split, in order.

        Raises:
            DatasetError: there is no such split.
        """
        self.manifest.split(split)
        return tuple(shard for shard in self.shards if shard.split == split)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierShards:
    """The shards that a dataset held before an append, and the folder of each.

    What an append writes depends on them if it keeps groups together or drops duplicates. While a repair rebuilds
    shards, those damaged in the dataset's folder are read from another one.
    """

    storage: Storage  # folder of the dataset
    manifest: Manifest  # manifest of the dataset, needed to read the shards
    shards: tuple[ShardInfo, ...]  # the shards as they were written
    # Folder of a shard's two files, by path of the shard, where it is not the dataset's
    folder_overrides: Mapping[str, Storage] = field(default_factory=dict)
    # Whether the new records come from the source of earlier ones, so that none is a duplicate
    same_source: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> EarlierShards:
        """Return all shards of a dataset."""
        return cls(storage=dataset.storage, manifest=dataset.manifest, shards=dataset.shards)

    def folder(self, shard: ShardInfo) -> Storage:
        """Return the folder that holds a shard."""
        return self.folder_overrides.get(shard.path, self.storage)


def open_dataset(location: StorageLike) -> Dataset:
    """Open the dataset in a folder: read `dataset.json` and the shard table.

    If an append or a repair commits in between, both are read again: the new `dataset.json` names another table, and
    the old one may be gone.

    Raises:
        DatasetError: there is no dataset, `dataset.json` is missing, or a newer version wrote it.
        CorruptionError: one of the two files is damaged.
        StorageError: the store refuses.

    >>> open_dataset("flights").manifest.records
    400
    """
    storage = as_storage(location)
    storage.check_reachable()
    now = _read_manifest(storage)
    while True:
        names, data = now
        try:
            with guarded(storage.locate(names.manifest), "a manifest", error=DatasetError):
                manifest = _decoded(storage, names, data)
                check_manifest(manifest, storage.locate(names.manifest))
        except CorruptionError as error:
            raise CorruptionError(f"{error}; {repair_hint(storage)}") from error
        try:
            table = read_checked(storage, manifest.shards_path, manifest.shards_bytes, manifest.shards_checksum)
        except CorruptionError:
            now = _read_manifest(storage)
            if now == (names, data):
                raise
        else:
            where = storage.locate(manifest.shards_path)
            with guarded(where, "a shard table", error=DatasetError):
                shards = decode_shards(table, manifest, where)
                check_shards(manifest, shards, where)
            return Dataset(storage=storage, manifest=manifest, shards=shards)


def _read_manifest(storage: Storage) -> tuple[FileNames, bytes]:
    try:
        return read_manifest(storage)
    except FileNotFoundError as error:
        tables = {path: names for names in ALL_NAMES for path in (names.table(0), salvaged_name(names.table(0)))}
        table = next(filter(storage.exists, tables), None)  # no listing: there may be millions of files
        if table and not storage.exists(LEASE_NAME):
            where = storage.locate(tables[table].manifest)
            raise DatasetError(f"{where} is missing, but {table} is there; {repair_hint(storage)}") from error
        raise no_dataset_error(storage) from error
    except StorageError as error:
        path = Path(storage.locate())
        if not isinstance(error.__cause__, NotADirectoryError) or not path.is_file():
            raise
        folder = path.parent.parent if path.parent.name == OWN_FOLDER else path.parent
        if holds_dataset(Storage(str(folder))):
            advice = f"name its folder, {folder}"
        else:
            advice = f"make one with: shard-dataset build {shlex.quote(str(path))} DST --label COL"
        raise DatasetError(f"{error}: {path} is a file, and a dataset is a folder; {advice}") from error


def no_dataset_error(storage: Storage) -> DatasetError:
    """Return the error for a folder with neither `dataset.json` nor anything to rebuild it from."""
    if is_own_folder(storage):
        where = storage.locate()
        parent = where.rstrip("/").rpartition("/")[0]
        return DatasetError(f"{where} holds files of the dataset at {parent}, and is none itself; name that folder")
    folder, mark, split = storage.locate().rpartition("#")
    if mark and holds_dataset(Storage(folder)):
        return DatasetError(
            f"there is no dataset at {storage.locate()}, but at {folder}; name that folder, and its split by an option "
            f"of its own, such as --split {split}"
        )
    return DatasetError(
        f"there is no dataset at {storage.locate()}: it has no {MANIFEST_NAME}. Either the path is wrong, or a "
        "build did not finish; make one with: shard-dataset build SRC DST --label COL"
    )


def _decoded(storage: Storage, names: FileNames, data: bytes) -> Manifest:
    path = storage.locate(names.manifest)
    try:
        return Manifest.decode(data, path)
    except CorruptionError:
        if storage.local_path is not None:
            raise
        return Manifest.decode(storage.read(names.manifest), path)  # the transfer may have damaged it


def read_checked(storage: Storage, path: str, expected_bytes: int, expected_checksum: str) -> pa.Buffer:
    """Read a file, memory-mapped if it is local; a CorruptionError if size or checksum is another, or it is gone."""
    try:
        data = storage.map(path)
        if storage.local_path is None and checksum(data) != expected_checksum:
            data = storage.map(path)  # the transfer may have damaged it
    except FileNotFoundError as error:
        raise CorruptionError(f"{storage.locate(path)} is missing; {repair_hint(storage)}") from error
    if data.size == expected_bytes and checksum(data) == expected_checksum:
        return data
    problem = content_problem(data.size, expected_bytes)
    raise CorruptionError(f"{storage.locate(path)} is damaged: {problem}; {repair_hint(storage)}")


def repair_hint(storage: Storage) -> str:
    """Return the command that repairs a damaged dataset, as the end of an error message."""
    return f"repair it with: shard-dataset repair {shlex.quote(storage.locate())}"


def read_records(dataset: Dataset, split: str, limit: int) -> Iterator[dict[str, Any]]:
    """Yield the first records of a split as plain Python values; each shard's checksum is verified before use.

    Args:
        limit: maximum number of records.

    >>> sorted(next(read_records(open_dataset("flights"), "test", limit=1)))
    ['arrival', 'carrier', 'hour', 'hours', 'miles']
    """
    for shard in dataset.split_shards(split):
        if limit <= 0:
            return
        data = read_checked(dataset.storage, shard.path, shard.bytes, shard.checksum)
        with corruption_errors(dataset.storage.locate(shard.path)):
            for record in _shard_records(dataset.manifest, data, shard.path):
                yield record
                limit -= 1
                if limit <= 0:
                    return


def _shaped(record: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Turn the flat tensors in a record into nested lists."""
    for feature in schema.features:
        if feature.fixed_shape and record[feature.name] is not None:
            values = np.empty(len(record[feature.name]), object)
            values[:] = record[feature.name]
            record[feature.name] = values.reshape(feature.fixed_shape).tolist()
    return record


def _shard_records(manifest: Manifest, data: pa.Buffer, path: str) -> Iterator[dict[str, Any]]:
    if manifest.shard_format == "parquet":
        batches = iterate_parquet(data, 1024)
    else:
        content = decompress(data.to_pybytes(), manifest.compression)
        batches = _tfrecord_batches(content, iterate_records(content, path), manifest.schema)
    for batch in batches:
        yield from (_shaped(record, manifest.schema) for record in batch.to_pylist())


def _tfrecord_batches(content: bytes, records: Iterator[tuple[int, bytes]], schema: Schema) -> Iterator[pa.RecordBatch]:
    while some := list(islice(records, _DECODED_RECORDS)):
        starts = np.array([offset for offset, _ in some]) + HEADER_BYTES
        ends = starts + [len(message) for _, message in some]
        yield decode_examples(np.frombuffer(content, np.uint8), starts, ends, schema, wide=True)
