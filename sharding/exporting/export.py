"""Exports a dataset to another program's format: WebDataset, Hugging Face `datasets` or TensorFlow Datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ringfeed.sharding.common.argument_names import options_of
from ringfeed.sharding.common.validation import fit_fields
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo
from ringfeed.sharding.dataset.shard_records import read_shard
from ringfeed.sharding.destination.atomic_folder import open_atomic_folder
from ringfeed.sharding.destination.dataset_draft import check_disjoint
from ringfeed.sharding.destination.provenance import Provenance, digest_of
from ringfeed.sharding.engines.executors import local_executor, run_tasks
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.progress import Report, StageProgress, ignore
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.urls import normalize_url_fields

from .dataset_card import CARD_NAME, dataset_card
from .huggingface import hf_parquet
from .tfds import tfds_metadata, tfds_shard
from .webdataset import webdataset_tar

EXPORT_FORMATS = {"webdataset": "tar", "hf": "parquet", "tfds": "tfrecord"}  # format: suffix of its files


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        url: URL or path of the dataset.
        destination: URL or path of the folder to write; new or empty.
        to: ``webdataset``, ``hf`` or ``tfds``.
        splits: splits to export; empty: all.
        workers: number of processes; the result does not depend on it.

    Raises:
        ConfigError: a value is invalid.

    >>> ExportOptions(url="flights", destination="out", to="zip")
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.ConfigError: what to export to must be one of webdataset, hf, tfds, got 'zip'
    """

    url: str
    destination: str
    to: str
    splits: tuple[str, ...] = ()
    workers: int = 1

    def __post_init__(self) -> None:
        normalize_url_fields(self, "url", "destination")
        fit_fields(self)
        if self.to not in EXPORT_FORMATS:
            raise ConfigError(f"what to export to must be one of {', '.join(EXPORT_FORMATS)}, got {self.to!r}")
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {self.workers}")
        if len(set(self.splits)) != len(self.splits):
            raise ConfigError(f"each split is named once, got {', '.join(self.splits)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What was written, or was there already.

    Attributes:
        records: number of records.
        files: number of files that hold records.
        bytes: their total size.
        is_new: whether this export wrote them; the same one may have done so before.

    >>> from ringfeed.sharding import ExportOptions, export
    >>> done = export(ExportOptions(url="flights", destination="tars", to="webdataset"))
    >>> done.records
    400
    """

    records: int
    files: int
    bytes: int
    is_new: bool = True


def export(options: ExportOptions | None = None, *, report: Report = ignore, **given: Any) -> Export:
    """Write a dataset in another program's format, one file per shard; each shard's checksum is verified first.

    The folder appears at once; see `open_atomic_folder`. Equal datasets yield equal bytes. Where the same export is
    there already, it stays as it is.

    Args:
        options: options of the export.
        report: called after every file.
        given: options by the names of the flags of `shard-dataset export`, in place of `options` or of their values:
            ``export(url="flights", destination="tars", to="webdataset", split=("test",))``.

    Raises:
        RingfeedError: the dataset or the destination cannot be used, or another export is writing there; nothing
            is left behind.

    >>> export(ExportOptions(url="flights", destination="tars", to="webdataset")).records
    400
    """
    options = options_of(ExportOptions, options, given)
    check_disjoint(options.url, options.destination)
    dataset = open_dataset(options.url)
    splits = options.splits or tuple(dataset.manifest.splits)
    shards = [(shard, f"{name}-{i:05d}") for name in splits for i, shard in enumerate(dataset.split_shards(name))]
    suffix = EXPORT_FORMATS[options.to]
    paths = [f"{key}-of-{dataset.manifest.splits[shard.split].shards:05d}.{suffix}" for shard, key in shards]
    infos = [replace(shard, path=path) for (shard, _), path in zip(shards, paths, strict=True)]
    if options.to == "tfds":
        tfds_metadata(dataset.manifest, splits, infos)  # refuses what TFDS cannot read before anything is written
    target, provenance = Storage(options.destination), _provenance(dataset.manifest, options.to, splits, paths)
    with open_atomic_folder(target, provenance) as storage, local_executor(options.workers) as pool:
        if storage is None:
            sizes, records = target.sizes(), sum(dataset.manifest.splits[name].records for name in splits)
            return Export(records=records, files=len(paths), bytes=sum(sizes[path] for path in paths), is_new=False)
        jobs = [
            (_export_shard, (dataset.storage, dataset.manifest, shard, options.to, key, storage, path))
            for (shard, key), path in zip(shards, paths, strict=True)
        ]
        tell = StageProgress(report, "export", len(jobs))
        written = run_tasks(pool, jobs, lambda _, done: None if done is None else tell(1, done.records))
        if options.to == "tfds":
            sized = [replace(info, bytes=file.bytes) for info, file in zip(infos, written, strict=True)]
            storage.write_all(tfds_metadata(dataset.manifest, splits, sized))
        storage.write(CARD_NAME, dataset_card(dataset.manifest, splits, suffix, provenance.digest))
    return Export(
        records=sum(shard.records for shard in written), files=len(written), bytes=sum(shard.bytes for shard in written)
    )


def _provenance(manifest: Manifest, to: str, splits: Sequence[str], paths: Sequence[str]) -> Provenance:
    """What an export is made from: the same for the same records in the same shards, whatever the shards' format."""
    built = [(dict(g.source), g.seed, dict(g.options), dict(g.shards)) for g in manifest.all_generations]
    lost = [(entry.split, entry.records, entry.class_counts) for entry in manifest.lost]
    contents = {name: manifest.splits[name].to_json() for name in splits}
    names = [str(name) for name in manifest.classes]
    times = ["times"] if any(feature.logical for feature in manifest.schema.features) else []  # once written as numbers
    categories = [feature.categories for feature in manifest.schema.features if feature.categories]
    digest = digest_of(to, built, contents, lost, str(manifest.schema.arrow), names, *times, *categories)
    return Provenance(record=CARD_NAME, digest=digest, files=paths)


def _export_shard(
    source: Storage, manifest: Manifest, shard: ShardInfo, to: str, key: str, target: Storage, path: str
) -> Export:
    batches = read_shard(source, manifest, shard)
    if to == "webdataset":
        content = pa.py_buffer(webdataset_tar(batches, manifest.schema, manifest.classes, key))
    else:
        content = {"hf": hf_parquet, "tfds": tfds_shard}[to](batches, manifest.schema, manifest.classes)
    target.write(path, content)
    return Export(records=shard.records, files=1, bytes=content.size)
