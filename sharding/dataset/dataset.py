"""A dataset on storage: open it, and look at its records."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..common.checksums import checksum
from ..errors import CorruptionError, DatasetError, StorageError
from ..formats.example_decode import decode_example
from ..formats.parquet import iterate_parquet
from ..formats.tfrecord import decompress, iterate_records
from ..schema import Schema
from ..storage.lease import LEASE_NAME
from ..storage.storage import Storage, StorageLike, as_storage
from .consistency import check_manifest, check_shards, corruption_errors
from .damage import content_problem
from .file_names import salvaged_name
from .manifest import MANIFEST_NAME, SHARDS_NAME, Manifest, ShardInfo
from .shard_table import decode_shards

__all__ = ["Dataset", "no_dataset_error", "open_dataset", "read_checked", "read_records", "repair_hint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """An opened dataset: where it is, what it says of itself, and its shards."""

    storage: Storage
    manifest: Manifest
    shards: tuple[ShardInfo, ...]

    def split_shards(self, split: str) -> tuple[ShardInfo, ...]:
        """The shards of one split, in order.

        Raises:
            DatasetError: there is no such split.
        """
        self.manifest.split(split)
        return tuple(shard for shard in self.shards if shard.split == split)


def open_dataset(location: StorageLike) -> Dataset:
    """Open a dataset by the URL of its folder; reads `dataset.json` and `shards.parquet`.

    What is written anew meanwhile is read anew, for it names another table, and the one before may be gone.

    Raises:
        DatasetError: there is none, its `dataset.json` is missing, or a newer version wrote it.
        CorruptionError: one of the two files is damaged.
        StorageError: the store refuses.
    """
    storage = as_storage(location)
    storage.check_reachable()
    now = _read_manifest(storage)
    while True:
        data = now
        try:
            manifest = _decoded(storage, data)
            check_manifest(manifest, storage.locate(MANIFEST_NAME))
        except CorruptionError as error:
            raise CorruptionError(f"{error}; {repair_hint(storage)}") from error
        try:
            table = read_checked(storage, manifest.shards_path, manifest.shards_bytes, manifest.shards_checksum)
        except CorruptionError:
            now = _read_manifest(storage)
            if now == data:
                raise
        else:
            where = storage.locate(manifest.shards_path)
            shards = decode_shards(table, manifest, where)
            check_shards(manifest, shards, where)
            return Dataset(storage=storage, manifest=manifest, shards=shards)


def _read_manifest(storage: Storage) -> bytes:
    try:
        return storage.read(MANIFEST_NAME)
    except FileNotFoundError as error:
        names = SHARDS_NAME, salvaged_name(SHARDS_NAME)
        table = next(filter(storage.exists, names), None)  # not by a listing: there may be millions of files
        if table and not storage.exists(LEASE_NAME):
            raise DatasetError(
                f"{storage.locate(MANIFEST_NAME)} is missing, but {table} is there; {repair_hint(storage)}"
            ) from error
        raise no_dataset_error(storage) from error
    except StorageError as error:
        path = Path(storage.locate())
        if not isinstance(error.__cause__, NotADirectoryError) or not path.is_file():
            raise
        if (path.parent / MANIFEST_NAME).exists():
            advice = f"name its folder, {path.parent}"
        else:
            advice = f"make one with: shard-dataset build {shlex.quote(str(path))} DST --label COL"
        raise DatasetError(f"{error}: {path} is a file, and a dataset is a folder; {advice}") from error


def no_dataset_error(storage: Storage) -> DatasetError:
    """The error of a folder without `dataset.json`, and without what that could be made again from."""
    return DatasetError(
        f"there is no dataset at {storage.locate()}: it has no {MANIFEST_NAME}. Either the path is wrong, or a "
        "build has not finished; make one with: shard-dataset build SRC DST --label COL"
    )


def _decoded(storage: Storage, data: bytes) -> Manifest:
    path = storage.locate(MANIFEST_NAME)
    try:
        return Manifest.decode(data, path)
    except CorruptionError:
        if storage.local_path is not None:
            raise
        return Manifest.decode(storage.read(MANIFEST_NAME), path)  # it may have been damaged on its way


def read_checked(storage: Storage, path: str, expected_bytes: int, expected_checksum: str) -> pa.Buffer:
    """The bytes of a file, memory-mapped where it is local, once they were found to be those that were written.

    Raises:
        CorruptionError: they are not, or the file is missing.
    """
    try:
        data = storage.map(path)
        if storage.local_path is None and checksum(data) != expected_checksum:
            data = storage.map(path)  # it may have been damaged on its way
    except FileNotFoundError as error:
        raise CorruptionError(f"{storage.locate(path)} is missing; {repair_hint(storage)}") from error
    if data.size == expected_bytes and checksum(data) == expected_checksum:
        return data
    problem = content_problem(data.size, expected_bytes)
    raise CorruptionError(f"{storage.locate(path)} is damaged: {problem}; {repair_hint(storage)}")


def repair_hint(storage: Storage) -> str:
    """What mends a damaged dataset, for the end of an error."""
    return f"repair it with: shard-dataset repair {shlex.quote(storage.locate())}"


def read_records(dataset: Dataset, split: str, limit: int) -> Iterator[dict[str, Any]]:
    """The first records of a split, as plain Python values, every shard checked before it is used.

    Args:
        dataset: opened.
        split: of the dataset.
        limit: how many records at most.
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
    """A record of a Parquet shard, where tensors are flat, with its tensors as nested lists."""
    for feature in schema.features:
        if feature.fixed_shape and record[feature.name] is not None:
            values = np.empty(len(record[feature.name]), object)
            values[:] = record[feature.name]
            record[feature.name] = values.reshape(feature.fixed_shape).tolist()
    return record


def _shard_records(manifest: Manifest, data: pa.Buffer, path: str) -> Iterator[dict[str, Any]]:
    if manifest.shard_format == "parquet":
        for batch in iterate_parquet(data, 1024):
            yield from (_shaped(record, manifest.schema) for record in batch.to_pylist())
        return
    for _, message in iterate_records(decompress(data.to_pybytes(), manifest.compression), path):
        yield decode_example(message, manifest.schema)
