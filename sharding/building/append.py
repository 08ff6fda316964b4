"""Append to a dataset: new records as a new generation of shards, taken in by one atomic write of `dataset.json`.

What is there already is neither read nor written but for `dataset.json` and the table. Everything else is a build's:
planning, rounds of tasks, journal and lease (`build.py`, `destination.py`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ..common.validation import fit_fields
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.earlier_shards import EarlierShards
from ..dataset.manifest import Manifest
from ..destination.dataset_draft import draft_dataset
from ..errors import ConfigError, DestinationError, SourceError
from ..messages import listed
from ..prepare import PrepareOptions, Select, restore_options
from ..progress import Report, ignore
from ..schema import Feature, Schema
from ..sources import Source
from ..sources.files.snapshot import record_listings
from ..storage.lease import Holder
from ..storage.storage import Storage
from ..storage.urls import normalize_url_fields
from .build import describe_build, write_dataset
from .build_plan import BuildPlan
from .options import ONE_SPLIT, BuildOptions
from .planning import open_build_source, plan_source

__all__ = ["AppendOptions", "append", "open_matching_source", "plan_append"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions:
    """What is asked of an append. Label, schema, format and compression are the dataset's.

    Attributes:
        source: URL or path of the data.
        destination: URL or path of the dataset.
        source_kind: see `sources.open_source`.
        shards: how many new ones in the largest split. Or None.
        shard_bytes: about how large each should be; None: as those that are there. Not together with `shards`.
        splits: share of each split, by name; None: as in the build, or by the column that it was split by. A name that
            the dataset does not have is a new split.
        seed: of split, shard and order; None: that of the build. Another generation is in another order all the same.
        workers, memory_bytes, spill, engine, on_bad_record: see `BuildOptions`.
        min_class_records: refuse new classes with fewer records.
        prepare: what is done to the records first; if nothing, what was done to those of the build.
        as_is: let the records be as they are, although those of the build were prepared.
        again: append what was appended, or what the dataset was built from, once more.
        folder: where the modules of functions that prepare the records are looked for first.

    Raises:
        ConfigError: a value its rule forbids.
    """

    source: str
    destination: str
    source_kind: str = "auto"
    shards: int | None = None
    shard_bytes: int | None = None
    splits: Mapping[str, Fraction] | None = None
    seed: int | None = None
    workers: int = 1
    memory_bytes: int | None = None
    spill: str | None = None
    engine: str = "local"
    on_bad_record: str = "fail"
    min_class_records: int = 2
    prepare: PrepareOptions = field(default_factory=PrepareOptions)
    as_is: bool = False
    again: bool = False
    folder: str = field(default_factory=os.getcwd)

    def __post_init__(self) -> None:
        normalize_url_fields(self, "source", "destination", optional="spill")
        fit_fields(self)
        self._as_build()  # the rules are those of a build

    def for_dataset(self, dataset: Dataset) -> BuildOptions:
        """The options of a build that writes shards like those of a dataset.

        Raises:
            ConfigError: the dataset was built in a way that does not allow for more records.
        """
        manifest = dataset.manifest
        recorded = manifest.options
        group_by = recorded.get("group_by")
        shares = {name: Fraction(share) for name, share in recorded["splits"].items()}
        splits = (shares or ONE_SPLIT) if self.splits is None else self.splits
        self._check_groups(manifest, group_by, splits)
        order = [*(name for name in manifest.splits if name in splits), *splits]  # as the table has them
        mean_bytes = sum(shard.bytes for shard in dataset.shards) // len(dataset.shards)
        alike = self.shards is None and self.shard_bytes is None
        own = self.as_is or self.prepare.recorded()
        return replace(
            self._as_build(),
            label=manifest.schema.label,
            shard_format=manifest.shard_format,
            compression=manifest.compression,
            splits={name: splits[name] for name in order},
            split_column=recorded.get("split_column") if self.splits is None else None,
            group_by=group_by,
            balance=recorded.get("balance", "records"),
            dali_index=recorded.get("dali_index", False),
            seed=manifest.seed if self.seed is None else self.seed,
            shard_bytes=max(1, mean_bytes) if alike else self.shard_bytes,
            prepare=self.prepare if own else restore_options(recorded.get("prepare", {}), self.folder),
        )

    def _check_groups(self, manifest: Manifest, group_by: str | None, splits: Collection[str]) -> None:
        """Refuse what would put a group in two splits; the split of each is read from the shards."""
        if group_by is None:
            return
        if group_by not in manifest.schema.names:
            raise ConfigError(
                f"{self.destination} was built with --group-by {group_by}, and does not store that column: a group "
                f"could come to be in two splits; build all records anew with --group-by {group_by}"
            )
        lacking = [name for name in manifest.splits if name not in splits]
        if lacking:
            raise ConfigError(
                f"{self.destination} was built with --group-by {group_by}, and its groups stay where they are: --split "
                f"must name all of its splits, and lacks {', '.join(lacking)}"
            )

    def _as_build(self) -> BuildOptions:
        return BuildOptions(
            source=self.source,
            destination=self.destination,
            source_kind=self.source_kind,
            shards=self.shards,
            shard_bytes=self.shard_bytes,
            splits=ONE_SPLIT if self.splits is None else self.splits,
            workers=self.workers,
            memory_bytes=self.memory_bytes,
            spill=self.spill,
            engine=self.engine,
            on_bad_record=self.on_bad_record,
            min_class_records=self.min_class_records,
            prepare=self.prepare,
        )


def plan_append(options: AppendOptions, *, executor: Executor | None = None, report: Report = ignore) -> BuildPlan:
    """Read the labels and decide everything; writes nothing.

    Raises:
        RingfeedError: as from `append`.
    """
    dataset = open_dataset(options.destination)
    decided = options.for_dataset(dataset)
    with _telling_kind(dataset.manifest, options):
        source = open_matching_source(dataset.manifest.schema, decided)
    plan = plan_source(source, decided, dataset.manifest, EarlierShards.of(dataset), executor=executor, report=report)
    _check_new(dataset.manifest, plan, options)
    return plan


def append(options: AppendOptions, *, executor: Executor | None = None, report: Report = ignore) -> Manifest:
    """Add the records of a source to a dataset, as balanced shards of their own.

    Readers see the dataset as it was until the last write, and then with all that is new. An append that was killed is
    gone on with by the same call, and ends with the same bytes; one that was killed after its last write is not done
    again.

    Args:
        options: what to append.
        executor: to run the tasks on; by default those of `options.engine`.
        report: called after every task.

    Returns:
        The manifest that was committed.

    Raises:
        DatasetError: there is no dataset.
        SourceError: the source cannot be read, or does not fit the dataset.
        RingfeedError: something else is wrong with the options or the destination. The dataset is as it was, and
            nothing is left behind unless starting again may help (`RingfeedError.may_pass`).
    """
    about = describe_build(options.source, options.spill, "append")
    with draft_dataset(Storage(options.destination), "append", about) as draft:
        base = draft.base
        assert base is not None

        def committed(plan: BuildPlan) -> Manifest | None:
            if _was_appended(base.manifest, draft.lease.previous, plan):
                return base.manifest
            _check_new(base.manifest, plan, options)
            return None

        decided = options.for_dataset(base)
        with record_listings() as listed, _telling_kind(base.manifest, options):
            source = open_matching_source(base.manifest.schema, decided)
        return write_dataset(source, listed, decided, draft, committed, executor=executor, report=report)


@contextmanager
def _telling_kind(manifest: Manifest, options: AppendOptions) -> Iterator[None]:
    """Let what is wrong with a source say so if the dataset was built with a kind of source that was not named here."""
    kind = manifest.options.get("source_kind")
    try:
        yield
    except (ConfigError, SourceError) as error:
        if kind is None or options.source_kind != "auto":
            raise
        told = f"{error} ({options.destination} was built with --source-kind {kind}: say so if this is such a source)"
        raise type(error)(told) from error


def _was_appended(manifest: Manifest, previous: Holder | None, plan: BuildPlan) -> bool:
    """Whether the records were appended by one that was killed between its commit and its end."""
    last = manifest.all_generations[-1]
    if not manifest.generations or previous is None or previous.task != "append":
        return False
    return last.source["fingerprint"] == plan.source.fingerprint and previous.plan == last.plan


def _check_new(manifest: Manifest, plan: BuildPlan, options: AppendOptions) -> None:
    """Refuse a source that the dataset holds already.

    Raises:
        DestinationError: it does.
    """
    for number, generation in enumerate(() if options.again else manifest.all_generations):
        if generation.source["fingerprint"] == plan.source.fingerprint:
            how = f"appended as generation {number}" if number else "what the dataset was built from"
            raise DestinationError(
                f"{options.destination} holds the records of {options.source} already: they were {how}; to have them "
                "twice, say --again"
            )


def open_matching_source(wanted: Schema, options: BuildOptions) -> Source:
    """The source of an append, with the features of the dataset in their order.

    Args:
        wanted: the schema of the dataset.
        options: of the append, decided.

    Raises:
        SourceError: it has other columns, or columns of other types.
    """
    types = {feature.name: feature for feature in wanted.features}
    source = open_build_source(options, types)
    _check_schema(wanted, source.schema, options)
    if source.schema.names == wanted.names:
        return source
    ordered = replace(options.prepare, steps=(*options.prepare.steps, Select(wanted.names)))
    return open_build_source(replace(options, prepare=ordered), types)


def _check_schema(wanted: Schema, found: Schema, options: BuildOptions) -> None:
    source, dataset = options.prepare.described(options.source), options.destination
    missing = [name for name in wanted.names if name not in found.names]
    if missing:
        raise SourceError(
            f"{source} has no column {missing[0]!r}, which {dataset} has{_more(missing)}; its columns are: "
            f"{listed(found.names)}"
        )
    if wanted.label != found.label:
        raise SourceError(f"the label of {source} is {found.label!r}, that of {dataset} is {wanted.label!r}")
    for feature in wanted.features:
        if (other := found[feature.name]) != feature:
            remedy = f"cast it with --cast {feature.name}={feature.dtype}"
            if other.logical != feature.logical:
                remedy = f"give it the Arrow type {feature.logical or feature.dtype} where it is made, or by --map"
            if (other.shape, other.encoding) != (feature.shape, feature.encoding):
                remedy = "bring it into that form with --schema or --map"
            what = "label" if feature.name == wanted.label else "column"
            raise SourceError(
                f"the {what} {feature.name!r} of {source} is {_words(other)}, in {dataset} it is {_words(feature)}; "
                f"{remedy}"
            )
    extra = [name for name in found.names if name not in wanted.names]
    if extra:
        raise SourceError(
            f"{source} has a column {extra[0]!r}, which {dataset} lacks{_more(extra)}; leave it out with --select "
            f"{','.join(wanted.names)}"
        )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _words(feature: Feature) -> str:
    shape = "x".join("?" if size is None else str(size) for size in feature.shape)
    kind = feature.encoding or feature.logical
    return f"{feature.dtype}{f'[{shape}]' if shape else ''}{f' ({kind})' if kind else ''}"
