"""A dataset on storage: open it, check every byte of it, and look at its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from .errors import CorruptionError, DatasetError, RingfeedError
from .formats.decode import decode_example
from .formats.parquet import iterate_parquet
from .formats.tfrecord import decompress, iterate_records
from .manifest import MANIFEST_NAME, SHARDS_NAME, Manifest, ShardInfo, checksum, decode_shards
from .schema import Schema
from .storage import Storage

__all__ = ["Damage", "Dataset", "open_dataset", "read_checked", "read_records", "verify"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file that is not as it was written.

    Attributes:
        path: relative to the dataset's root.
        problem: what is wrong with it, and where.
    """

    path: str
    problem: str


def open_dataset(location: str | Storage) -> Dataset:
    """Open a dataset by the URL of its folder; reads `dataset.json` and `shards.parquet`.

    Raises:
        DatasetError: there is none, or a newer version wrote it.
        CorruptionError: one of the two files is damaged.
        StorageError: the store refuses.
    """
    storage = location if isinstance(location, Storage) else Storage(location)
    storage.check_reachable()
    try:
        data = storage.read(MANIFEST_NAME)
    except FileNotFoundError as error:
        raise DatasetError(
            f"there is no dataset at {storage.locate()}: it has no {MANIFEST_NAME}. Either the path is wrong, or a "
            "build has not finished; make one with: shard-dataset build SRC DST --label COL"
        ) from error
    manifest = Manifest.decode(data, storage.locate(MANIFEST_NAME))
    table = read_checked(storage, SHARDS_NAME, manifest.shards_bytes, manifest.shards_checksum)
    return Dataset(storage=storage, manifest=manifest, shards=decode_shards(table.to_pybytes()))


def read_checked(storage: Storage, path: str, expected_bytes: int, expected_checksum: str) -> pa.Buffer:
    """The bytes of a file, memory-mapped where it is local, once they were found to be those that were written.

    Raises:
        CorruptionError: they are not, or the file is missing.
    """
    try:
        data = storage.map(path)
    except FileNotFoundError as error:
        raise CorruptionError(f"{storage.locate(path)} is missing; see: shard-dataset verify") from error
    if data.size != expected_bytes:
        raise CorruptionError(f"{storage.locate(path)} has {data.size} bytes, {expected_bytes} were written")
    if checksum(data) != expected_checksum:
        raise CorruptionError(f"{storage.locate(path)} is damaged: its checksum does not match")
    return data


def verify(location: str | Storage, report: Callable[[int, int], None] = lambda done, total: None) -> list[Damage]:
    """Read every byte of a dataset against its checksum.

    Args:
        location: of the dataset.
        report: called with the files checked and the files in all.

    Returns:
        The damaged and missing files; empty if all is well.

    Raises:
        RingfeedError: `dataset.json` or `shards.parquet` is missing or damaged, so that there is no checksum to hold
            the others against.
    """
    dataset = open_dataset(location)
    files = [
        entry
        for shard in dataset.shards
        for entry in (
            (shard.path, shard.bytes, shard.checksum),
            (shard.index_path, shard.index_bytes, shard.index_checksum),
        )
    ]
    files += [(path, info.bytes, info.checksum) for path, info in dataset.manifest.files.items()]
    damages = []
    for done, (path, size, expected) in enumerate(files, start=1):
        try:
            read_checked(dataset.storage, path, size, expected)
        except CorruptionError as error:
            where = _find_record(dataset, path)
            damages.append(Damage(path=path, problem=f"{error}{f' ({where})' if where else ''}"))
        report(done, len(files))
    return damages


def _find_record(dataset: Dataset, path: str) -> str:
    """The first damaged record of a TFRecord shard, where its own CRCs can tell."""
    if not path.endswith(".tfrecord"):
        return ""
    try:
        data = decompress(dataset.storage.read(path), dataset.manifest.compression)
        for _ in iterate_records(data, path):
            pass
    except CorruptionError as error:
        return str(error).partition(": ")[2]
    except (OSError, ValueError, RingfeedError, ArithmeticError):
        return ""
    return ""


def read_records(dataset: Dataset, split: str, limit: int) -> Iterator[dict[str, Any]]:
    """The first records of a split, as plain Python values, every shard checked before it is used."""
    for shard in dataset.split_shards(split):
        if limit <= 0:
            return
        data = read_checked(dataset.storage, shard.path, shard.bytes, shard.checksum)
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
