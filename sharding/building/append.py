"""Append to a dataset: write a new generation of shards, and commit it by one atomic write of `dataset.json`.

Existing files are neither read nor written, except for `dataset.json` and the shard table, and for shards whose groups
or records the new ones are compared with. Planning, rounds, journal and lease are those of a build (`build.py`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

from ringfeed.sharding.common.argument_names import options_of
from ringfeed.sharding.common.validation import fit_fields
from ringfeed.sharding.dataset.dataset import Dataset, EarlierShards, open_dataset
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.destination.dataset_draft import check_destination, draft_dataset, is_whole
from ringfeed.sharding.destination.provenance import digest_of
from ringfeed.sharding.errors import ConfigError, DestinationError, RepeatedError, SourceError
from ringfeed.sharding.messages import listed
from ringfeed.sharding.prepare import PrepareOptions, Select, check_trusted, restore_options
from ringfeed.sharding.progress import Report, ignore
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources import Source
from ringfeed.sharding.sources.files.snapshot import record_listings
from ringfeed.sharding.sources.records.in_memory import is_in_memory
from ringfeed.sharding.storage.lease import Holder
from ringfeed.sharding.storage.storage import Storage

from .build import describe_build, planned_dataset
from .build_plan import BuildPlan
from .memory_sources import spilled_source
from .options import ONE_SPLIT, BuildOptions, normalize_places
from .planning import open_build_source, open_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions:
    """Options of an append. The dataset has label, schema, format and compression already.

    Attributes:
        source: see `BuildOptions`.
        destination: URL or path of the dataset.
        source_kind: see `sources.open_source`.
        shards: number of new shards in the largest split, or None.
        shard_bytes: approximate size of each new shard; None: as the existing shards. Not together with `shards`.
        splits: share of each split by name; None: as in the build, or by the column that the build split by. A name
            that the dataset lacks is a new split.
        split_files: see `BuildOptions`; empty: as in the build, unless there are `splits`.
        seed: seed of split, shard and order; None: the seed of the build. Each generation has its own order anyway.
        workers, memory_bytes, spill, engine, on_bad_record: see `BuildOptions`.
        min_class_records: new classes with fewer records are rare, and so are those with fewer than splits.
        rare_classes: what to do about rare classes: ``error``, ``drop`` or ``merge:NAME``.
        prepare: preparation of the records; by default, as in the build.
        as_is: leave the records unprepared, even if the build prepared its own.
        again: append a source that the dataset holds already.
        trust_code: import and call the `--map` functions that `dataset.json` names.
        folder: folder that is searched first for the modules of `--map` functions.

    Raises:
        ConfigError: a value violates its rule.

    >>> options = AppendOptions(source="flights.parquet", destination="flights", shards=2, again=True)
    >>> options.shards, options.seed
    (2, None)
    """

    source: Any
    destination: str
    source_kind: str = "auto"
    shards: int | None = None
    shard_bytes: int | None = None
    splits: Mapping[str, Fraction] | None = None
    split_files: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    workers: int = 1
    memory_bytes: int | None = None
    spill: str | None = None
    engine: str = "local"
    on_bad_record: str = "fail"
    min_class_records: int = 2
    rare_classes: str = "error"
    prepare: PrepareOptions = field(default_factory=PrepareOptions)
    as_is: bool = False
    again: bool = False
    trust_code: bool = False
    folder: str = field(default_factory=os.getcwd)

    def __post_init__(self) -> None:
        normalize_places(self)
        fit_fields(self)
        self._as_build()  # checks the rules of a build

    def for_dataset(self, dataset: Dataset) -> BuildOptions:
        """The options of a build that writes shards like a dataset's.

        Raises:
            ConfigError: the way the dataset was built rules out more records, or names functions without `trust_code`.
        """
        manifest = dataset.manifest
        recorded = manifest.options
        group_by = recorded.get("group_by")
        shares = {name: Fraction(share) for name, share in recorded["splits"].items()}
        has_own_splits = self.splits is not None or bool(self.split_files)
        splits = self.splits or (ONE_SPLIT if has_own_splits else shares or ONE_SPLIT)
        self._check_groups(manifest, group_by, splits)
        if (times := recorded.get("split_by_time")) and not has_own_splits:
            raise ConfigError(
                f"{self.destination} was built with --split-by-time {times}, which does not say where new records go; "
                "name their split, such as with --split train=1, or build all records again"
            )
        order = [*(name for name in manifest.splits if name in splits), *splits]  # in the order of the table
        mean_bytes = sum(shard.bytes for shard in dataset.shards) // len(dataset.shards)
        same_size = self.shards is None and self.shard_bytes is None
        return replace(
            self._as_build(),
            label=manifest.schema.label,
            shard_format=manifest.shard_format,
            compression=manifest.compression,
            splits={name: splits[name] for name in order},
            split_column=None if has_own_splits else recorded.get("split_column"),
            split_files=self.split_files if has_own_splits else recorded.get("split_files", {}),
            group_by=group_by,
            balance=recorded.get("balance", "records"),
            dali_index=recorded.get("dali_index", False),
            seed=manifest.seed if self.seed is None else self.seed,
            shard_bytes=max(1, mean_bytes) if same_size else self.shard_bytes,
            prepare=self._preparation(recorded.get("prepare", {})),
        )

    def _preparation(self, recorded: Mapping[str, Any]) -> PrepareOptions:
        """The preparation of the options, or else of the build."""
        if self.as_is or self.prepare.recorded():
            return self.prepare
        prepare = restore_options(recorded, self.folder)
        if not self.trust_code:
            check_trusted(prepare.steps, self.destination, "give --map and the other steps again")
        return replace(prepare, images_from=self.prepare.images_from)

    def _check_groups(self, manifest: Manifest, group_by: str | None, splits: Collection[str]) -> None:
        """Refuse an append that could put a group in two splits; the split of each group is read from the shards."""
        if group_by is None:
            return
        if group_by not in manifest.schema.names:
            raise ConfigError(
                f"{self.destination} was built with --group-by {group_by} but does not store that column, so a group "
                f"could end up in two splits; rebuild all records with --group-by {group_by}"
            )
        lacking = [name for name in manifest.splits if name not in splits]
        if lacking:
            raise ConfigError(
                f"{self.destination} was built with --group-by {group_by}, and its groups stay in their splits, so "
                f"--split must name all splits; it lacks {', '.join(lacking)}"
            )

    def _as_build(self) -> BuildOptions:
        shared = {f.name for f in fields(self)} & {f.name for f in fields(BuildOptions)} - {"seed", "splits"}
        splits = ONE_SPLIT if self.splits is None else self.splits
        return BuildOptions(**{name: getattr(self, name) for name in shared}, splits=splits)


def plan_append(
    options: AppendOptions | None = None, *, executor: Executor | None = None, report: Report = ignore, **given: Any
) -> BuildPlan:
    """Read the labels and plan an append; writes nothing.

    Args:
        options, executor, report, given: see `append`.

    Raises:
        RingfeedError: as in `append`.

    >>> plan_append(source="flights.parquet", destination="flights", again=True).classes
    ('late', 'on time')
    """
    options = options_of(AppendOptions, options, given)
    dataset = open_dataset(options.destination)
    earlier = EarlierShards.of(dataset)
    with spilled_source(options) as options:
        with _kind_hint(dataset.manifest, options):
            decided = options.for_dataset(dataset)
            source = open_matching_source(dataset.manifest.schema, decided)
        with open_plan(source, decided, dataset.manifest, earlier, executor=executor, report=report) as plan:
            _check_new(dataset, plan, options)
            return plan


def append(
    options: AppendOptions | None = None, *, executor: Executor | None = None, report: Report = ignore, **given: Any
) -> Manifest:
    """Add the records of a source to a dataset, as balanced shards of their own.

    Readers see the old dataset until the last write, and all new records after it. The same call resumes a killed
    append and writes the same bytes; an append that was killed after its last write is not repeated.

    Args:
        options: options of the append.
        executor: executor of the tasks; by default, the engine of the options.
        report: called after every task.
        given: options by the names of the flags, in place of `options` or of their values; see `build`.

    Returns:
        The manifest of the dataset with its new generation.

    Raises:
        DatasetError: there is no dataset.
        SourceError: the source cannot be read, or does not fit the dataset.
        RingfeedError: the options or the destination are at fault. The dataset is unchanged, and nothing is left
            behind, unless another attempt may succeed (`RingfeedError.may_pass`).

    >>> append(source="flights.parquet", destination="flights", again=True).records
    800
    """
    options = options_of(AppendOptions, options, given)
    if is_in_memory(options.source):
        check_destination(Storage(options.destination), "append")  # before the records are read, perhaps for hours
    with spilled_source(options) as options:
        return _append(options, executor, report)


def _append(options: AppendOptions, executor: Executor | None, report: Report) -> Manifest:
    about = describe_build(options.source, options.spill, "append")
    with draft_dataset(Storage(options.destination), "append", about) as draft:
        base = draft.base
        assert base is not None

        with record_listings() as listings, _kind_hint(base.manifest, options):
            decided = options.for_dataset(base)
            source = open_matching_source(base.manifest.schema, decided)
        with planned_dataset(source, listings, decided, draft, executor=executor, report=report) as planned:
            if _was_appended(base.manifest, draft.lease.previous, planned.plan):
                return base.manifest
            _check_new(base, planned.plan, options)
            return planned.write()


@contextmanager
def _kind_hint(manifest: Manifest, options: AppendOptions) -> Iterator[None]:
    """Add a hint to the errors of a source if the dataset was built with a source kind or splits not named now."""
    kind = manifest.options.get("source_kind")
    try:
        yield
    except (ConfigError, SourceError) as error:
        splits = manifest.options.get("split_files", {})
        if splits and options.splits is None and not options.split_files:
            pairs = " ".join(f"{name}={pattern!r}" for name, pattern in splits.items())
            hint = f"{options.destination} was built with --split-files {pairs}; for other files, add --split NAME=1"
        elif kind is not None and options.source_kind == "auto":
            hint = f"{options.destination} was built with --source-kind {kind}; add it if this source is of that kind"
        else:
            raise
        raise type(error)(f"{error} ({hint})") from error


def _was_appended(manifest: Manifest, previous: Holder | None, plan: BuildPlan) -> bool:
    """Whether a previous append committed these records, and was killed before it ended."""
    last = manifest.all_generations[-1]
    if not manifest.generations or previous is None or previous.task != "append":
        return False
    return last.source["fingerprint"] == plan.source.fingerprint and previous.plan == last.plan


def _check_new(dataset: Dataset, plan: BuildPlan, options: AppendOptions) -> None:
    """Refuse a source that the dataset holds already (a DestinationError).

    A RepeatedError if the last append was this one, and the dataset is whole.
    """
    generations = dataset.manifest.all_generations
    for number, generation in enumerate(() if options.again else generations):
        if generation.source["fingerprint"] == plan.source.fingerprint:
            how = f"appended as generation {number}" if number else "what the dataset was built from"
            is_repeated = generation is generations[-1] and _is_last(dataset, options, plan.options)
            raise (RepeatedError if is_repeated else DestinationError)(
                f"{options.destination} holds the records of {options.source} already: they were {how}; to store them "
                "twice, add --again"
            )


def _is_last(dataset: Dataset, options: AppendOptions, decided: BuildOptions) -> bool:
    """Whether the last append had the same options, and the dataset is as it left it."""
    *before, last = dataset.manifest.all_generations
    if not before or not is_whole(dataset):
        return False
    shards = tuple(shard for shard in dataset.shards if generation_of(shard.path) < len(before))
    shard_bytes = options.for_dataset(replace(dataset, shards=shards)).shard_bytes  # as large as those of that time
    recorded = replace(decided, shard_bytes=shard_bytes).recorded()
    return digest_of(recorded, decided.seed) == digest_of(last.options, last.seed)


def open_matching_source(wanted: Schema, options: BuildOptions) -> Source:
    """Open the source of an append, with its features in the order of the dataset.

    Raises:
        SourceError: the columns or their types differ from the dataset's.
    """
    types = {feature.name: feature for feature in wanted.features}
    source = open_build_source(options, types)
    _check_schema(wanted, source.schema, options)
    if source.schema.names == wanted.names:
        return source
    ordered = replace(options.prepare, steps=(*options.prepare.steps, Select(wanted.names)))
    return open_build_source(replace(options, prepare=ordered), types)


def _check_schema(wanted: Schema, given: Schema, options: BuildOptions) -> None:
    source, dataset = options.prepare.described(options.source), options.destination
    missing = [name for name in wanted.names if name not in given.names]
    if missing:
        raise SourceError(
            f"{source} has no column {missing[0]!r}, which {dataset} has{_and_more(missing)}; its columns are: "
            f"{listed(given.names)}"
        )
    if wanted.label != given.label:
        raise SourceError(f"the label of {source} is {given.label!r}, and {dataset} has {wanted.label!r}")
    for feature in wanted.features:
        if (other := replace(given[feature.name], categories=feature.categories)) != feature:
            remedy = f"cast it with --cast {feature.name}={feature.dtype}"
            if other.logical != feature.logical:
                remedy = f"give it the Arrow type {feature.logical or feature.dtype} in the source or with --map"
            if (other.shape, other.encoding) != (feature.shape, feature.encoding):
                remedy = "convert it with --schema or --map"
            what = "label" if feature.name == wanted.label else "column"
            raise SourceError(
                f"the {what} {feature.name!r} of {source} is {_described(other)}, in {dataset} "
                f"it is {_described(feature)}; {remedy}"
            )
    extra = [name for name in given.names if name not in wanted.names]
    if extra:
        raise SourceError(
            f"{source} has a column {extra[0]!r}, which {dataset} lacks{_and_more(extra)}; leave it out with --select "
            f"{','.join(wanted.names)}"
        )


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _described(feature: Feature) -> str:
    shape = "x".join("?" if size is None else str(size) for size in feature.shape)
    kind = feature.encoding or feature.logical
    return f"{feature.dtype}{f'[{shape}]' if shape else ''}{f' ({kind})' if kind else ''}"
