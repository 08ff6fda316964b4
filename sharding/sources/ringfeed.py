"""A ringfeed dataset as a source: every shard is checked against its checksum before it is used."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from ringfeed.sharding.compute.batches import BATCH_ROWS
from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.dataset.dataset import Dataset, open_dataset
from ringfeed.sharding.dataset.file_names import MANIFEST_NAME
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo
from ringfeed.sharding.dataset.own_folder import find_names, holds_dataset
from ringfeed.sharding.dataset.shard_records import read_index_rows, read_shard
from ringfeed.sharding.errors import ConfigError, DatasetError, StorageError
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.storage.client_errors import is_transient
from ringfeed.sharding.storage.storage import Storage

from .base import Part, RecordSource, Reject, fail_on_bad
from .files.http_listing import is_served_below, without_query

SPLIT = "split"


def find_dataset(url: str) -> tuple[str, str | None] | None:
    """Return the folder, and the split of ``FOLDER#SPLIT``, if the URL names a dataset; else None."""
    folder, mark, split = url.rpartition("#")
    if mark and _holds_dataset(folder):  # tried first: HTTP clients drop the fragment, and would find the folder
        return folder, split
    return (url, None) if _holds_dataset(url) else None


def _locate(url: str) -> tuple[str, str | None]:
    place = find_dataset(url)
    if place is None:
        holds_dataset(Storage(url))  # raises if the store is the problem
        raise DatasetError(f"there is no dataset at {url}: it has no {MANIFEST_NAME}; name the folder of a dataset")
    return place


def _holds_dataset(url: str) -> bool:
    if without_query(url) != url:  # a name appended to it would become part of the query
        return False
    try:
        Storage(url).check_reachable()
        names = find_names(Storage(url))
        return names is not None and not is_served_below(url, names.manifest)
    except StorageError as error:
        if is_transient(error):
            raise
        return False  # not a readable folder; the listing that follows reports why


def open_named_dataset(url: str) -> tuple[Dataset, str | None]:
    """Open the dataset at a URL; return it, and the split of ``FOLDER#SPLIT`` or None.

    Raises:
        DatasetError: there is no dataset.
        CorruptionError: `dataset.json` or the shard table is damaged.
    """
    root, split = _locate(url)
    return open_dataset(root), split


def resolve_split(url: str, dataset: Dataset, split: str | None) -> str:
    """Return the split that a URL names, or the dataset's only one.

    Args:
        url: URL of the dataset, for the error.
        dataset: result of `open_named_dataset`.
        split: its second result.

    Raises:
        ConfigError: the URL names no split, and the dataset has several.
    """
    splits = list(dataset.manifest.splits)
    if split is None and len(splits) > 1:
        raise ConfigError(
            f"{url} has the splits {', '.join(splits)}; name one as {url}#{splits[0]}, or split all its records anew "
            "with --split"
        )
    return split or splits[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingfeedSource(RecordSource):
    """A source of a ringfeed dataset, or of one split of it; a part is a shard.

    The pieces of a part are its `ShardInfo` and, if the shard lies elsewhere than at `url`, its folder.

    Attributes:
        url: URL of the dataset's folder.
        manifest: manifest of the dataset, without its splits and companion files.
    """

    suffixes: ClassVar[tuple[str, ...]] = (f"/{MANIFEST_NAME}",)

    manifest: Manifest

    @classmethod
    def open(cls, url: str, label: str | None) -> RingfeedSource:
        """Read `dataset.json` and the shard table; see `open_source`.

        The URL names the dataset's folder, for all splits in turn, or ``FOLDER#SPLIT``. The default label is the
        dataset's own; `SPLIT` adds a column of split names, unless there is one.

        Raises:
            DatasetError: there is no dataset, or no such split.
            CorruptionError: one of the two files is damaged.
        """
        root, split = _locate(url)
        dataset = open_dataset(root)
        shards = dataset.shards if split is None else dataset.split_shards(split)
        schema = dataset.manifest.schema
        if label == SPLIT and SPLIT not in schema.names:
            schema = _with_splits(schema)
        return cls(
            url=dataset.storage.address(),  # absolute: a worker's current folder may differ
            schema=Schema(features=schema.features, label=schema.label if label is None else label),
            parts=tuple(Part(path=dataset.storage.address(shard.path), pieces=(shard,)) for shard in shards),
            fingerprint=f"{derive_key(dataset.manifest.shards_checksum, split or ''):016x}",
            manifest=replace(dataset.manifest, splits={}, files={}),
        )

    def with_splits(self) -> RingfeedSource:
        """Return the same records with a column `SPLIT` of split names; there must be no such column yet."""
        return replace(self, schema=_with_splits(self.schema))

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Read the labels: the dataset's own from the shard's index, other columns from the shard."""
        shard: ShardInfo = part.pieces[0]
        label = self.schema.label
        if label is None:
            yield pa.nulls(shard.records)
        elif label == self.manifest.schema.label:
            classes = pa.array(self.manifest.classes, self.schema[label].primitive)
            ids = read_index_rows(self._folder(part), self.manifest, shard).column("class_id")
            for start in range(0, shard.records, BATCH_ROWS):
                yield classes.take(ids.slice(start, BATCH_ROWS))
        elif label not in self.manifest.schema.names:
            yield pa.repeat(shard.split, shard.records)
        else:
            for batch in read_shard(self._folder(part), self.manifest, shard, [label]):
                yield batch.column(label)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        shard: ShardInfo = part.pieces[0]
        names = [name for name in self.schema.names if name in self.manifest.schema.names]
        if not names:  # no column of the shard is needed
            for start in range(0, shard.records, BATCH_ROWS):
                yield self._batch(shard, [], min(BATCH_ROWS, shard.records - start))
            return
        for batch in read_shard(self._folder(part), self.manifest, shard, names):
            yield self._batch(shard, batch.columns, batch.num_rows)

    def narrow(self, columns: Collection[str]) -> RingfeedSource:
        """Return the same records with these columns alone; no others are read."""
        return replace(self, schema=self.schema.only(columns))

    def _batch(self, shard: ShardInfo, columns: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
        split = [pa.repeat(shard.split, rows)] * (len(self.schema.features) - len(columns))
        return pa.RecordBatch.from_arrays([*columns, *split], schema=self.schema.arrow)

    def _folder(self, part: Part) -> Storage:
        folder: Storage = part.pieces[1] if len(part.pieces) > 1 else Storage(self.url)
        return folder


def _with_splits(schema: Schema) -> Schema:
    return Schema(features=(*schema.features, Feature(name=SPLIT, dtype="string")), label=schema.label)
