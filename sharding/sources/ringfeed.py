"""A dataset that ringfeed wrote, as a source of another: every shard is held against its checksum before it is used."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ..compute.batches import BATCH_ROWS
from ..compute.keyed_random import derive_key
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.manifest import MANIFEST_NAME, Manifest, ShardInfo
from ..dataset.shard_records import read_index_rows, read_shard
from ..errors import ConfigError, DatasetError, StorageError
from ..schema import Feature, Schema
from ..storage.retry import is_transient
from ..storage.storage import Storage
from .base import CompleteDrafts, Part, Reject, fail_on_bad
from .files.http_listing import is_served_below, without_query

__all__ = ["SPLIT", "RingfeedSource", "find_dataset", "open_named_dataset", "resolve_split"]

SPLIT = "split"


def find_dataset(url: str) -> tuple[str, str | None] | None:
    """The folder and, of ``FOLDER#SPLIT``, the split that a URL names, if there is a dataset in it."""
    folder, mark, split = url.rpartition("#")
    if mark and _holds_dataset(folder):  # asked first: to clients of HTTP, both URLs are the folder
        return folder, split
    return (url, None) if _holds_dataset(url) else None


def _locate(url: str) -> tuple[str, str | None]:
    found = find_dataset(url)
    if found is None:
        Storage(url).exists(MANIFEST_NAME)  # raises if it is the store that is the trouble
        raise DatasetError(f"there is no dataset at {url}: it has no {MANIFEST_NAME}; name the folder of a dataset")
    return found


def _holds_dataset(url: str) -> bool:
    if without_query(url) != url:  # what is added to it is part of the query, and the file itself comes again
        return False
    try:
        Storage(url).check_reachable()
        return Storage(url).exists(MANIFEST_NAME) and not is_served_below(url, MANIFEST_NAME)
    except StorageError as error:
        if is_transient(error):
            raise
        return False  # whatever it is, it is no folder that one can look into; the listing to come tells more


def open_named_dataset(url: str) -> tuple[Dataset, str | None]:
    """The dataset and, of ``FOLDER#SPLIT``, the split that a URL names.

    Raises:
        DatasetError: there is no dataset.
        CorruptionError: `dataset.json` or the table of its shards is damaged.
    """
    root, split = _locate(url)
    return open_dataset(root), split


def resolve_split(url: str, dataset: Dataset, split: str | None) -> str:
    """The split that a URL names, or the only one that the dataset has.

    Args:
        url: of the dataset, for the error.
        dataset: see `open_named_dataset`.
        split: that too.

    Raises:
        ConfigError: it has several.
    """
    splits = list(dataset.manifest.splits)
    if split is None and len(splits) > 1:
        raise ConfigError(
            f"{url} has the splits {', '.join(splits)}; name one as {url}#{splits[0]}, or say with --split how to "
            f"split all its records anew, or keep them with --split-column {SPLIT}"
        )
    return split or splits[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingfeedSource(CompleteDrafts):
    """A source that is a dataset of ours, or one split of it; a part is a shard, and may name the folder that holds it.

    Attributes:
        url: of the dataset's folder.
        manifest: its manifest, without what it says of splits and of files for other programs.
    """

    url: str
    schema: Schema
    parts: tuple[Part, ...]
    fingerprint: str
    manifest: Manifest

    @classmethod
    def open(cls, url: str, label: str | None) -> RingfeedSource:
        """Read `dataset.json` and `shards.parquet`.

        Args:
            url: of the dataset's folder: all splits, one after the other; or ``FOLDER#SPLIT``.
            label: None for the dataset's own. `SPLIT`, if no column has that name, makes one of the splits' names.

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
            url=dataset.storage.locate(),  # workers may have another folder
            schema=Schema(features=schema.features, label=schema.label if label is None else label),
            parts=tuple(Part(path=dataset.storage.locate(shard.path), pieces=(shard,)) for shard in shards),
            fingerprint=f"{derive_key(dataset.manifest.shards_checksum, split or ''):016x}",
            manifest=replace(dataset.manifest, splits={}, files={}),
        )

    def with_splits(self) -> RingfeedSource:
        """The same records with a column `SPLIT`, which names the split of each; there is no column of that name."""
        return replace(self, schema=_with_splits(self.schema))

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """From the index and the classes, where they are those of the dataset; of another column, from the shard."""
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
        """The records; they are complete."""
        shard: ShardInfo = part.pieces[0]
        names = [name for name in self.schema.names if name in self.manifest.schema.names]
        if not names:  # nothing in the shard is asked for
            for start in range(0, shard.records, BATCH_ROWS):
                yield self._batch(shard, [], min(BATCH_ROWS, shard.records - start))
            return
        for batch in read_shard(self._folder(part), self.manifest, shard, names):
            yield self._batch(shard, batch.columns, batch.num_rows)

    def narrow(self, columns: Collection[str]) -> RingfeedSource:
        """The same records with these columns alone; no others are read."""
        return replace(self, schema=self.schema.only(columns))

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """The head of the shard; to be checked it is read as a whole."""
        return next(self.drafts(part)).slice(0, records)

    def _batch(self, shard: ShardInfo, columns: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
        split = [pa.repeat(shard.split, rows)] * (len(self.schema.features) - len(columns))
        return pa.RecordBatch.from_arrays([*columns, *split], schema=self.schema.arrow)

    def _folder(self, part: Part) -> Storage:
        folder: Storage = part.pieces[1] if len(part.pieces) > 1 else Storage(self.url)
        return folder


def _with_splits(schema: Schema) -> Schema:
    return Schema(features=(*schema.features, Feature(name=SPLIT, dtype="string")), label=schema.label)
