"""A source whose files come in splits: one source for each split, whose records stay in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, Schema

from .base import (
    BadRecord,
    CheckableSource,
    NamedClassesSource,
    Part,
    RecordSource,
    Reject,
    SelectiveSource,
    Source,
    fail_on_bad,
    late_bytes,
    narrow_source,
    select_part,
)
from .files.find import split_chain
from .files.record_places import record_files, record_places
from .images.image_files import ImageCheck, image_fault

_SPLIT = "\0split"  # column of drafts that are yet to be completed; the zero byte keeps its name apart
Open = Callable[[str, Mapping[str, Feature]], Source]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPart(Part):
    """A part of one split."""

    split: int  # number of the split


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSource:
    """The sources of some splits, one after the other; each part belongs to one split."""

    url: str  # URL of the folder that holds the files of all splits
    splits: tuple[Source, ...]  # source of each split, without its parts
    parts: tuple[SplitPart, ...]
    schema: Schema  # columns of the records
    fingerprint: str  # hash of the splits' names and fingerprints
    left_out: tuple[str, ...] = ()  # see `SelectiveSource`
    class_names: tuple[str, ...] = ()  # see `NamedClassesSource`

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        return self._split(part).labels(part, reject)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        return (self._draft(batch, part) for batch in self._split(part).drafts(part, reject))

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        return self._draft(self._split(part).sample(part, records), part)

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Complete the drafts of each split by its source."""
        if _SPLIT not in drafts.schema.names:
            return drafts
        numbers = drafts.column(_SPLIT).to_numpy()
        plain = drafts.select([name for name in drafts.schema.names if name != _SPLIT])
        order = np.argsort(numbers, kind="stable")
        batches = [
            self.splits[number].complete(plain.take(pa.array(order[numbers[order] == number])))
            for number in np.unique(numbers).tolist()
        ]
        if not batches:
            return self.schema.empty
        if len(batches) == 1:
            return batches[0]
        return pa.Table.from_batches(batches).combine_chunks().take(pa.array(np.argsort(order))).to_batches()[0]

    def late_bytes(self, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
        return late_bytes(self._split(part), part, drafts)

    def narrow(self, columns: Collection[str]) -> SplitSource:
        """Return the same records with these columns, and as few others as each source can."""
        splits = tuple(narrow_source(split, columns) for split in self.splits)
        return replace(self, splits=splits, schema=splits[0].schema)

    def places(self, part: Part, positions: npt.NDArray[np.int64], rejected: Sequence[BadRecord]) -> list[str]:
        return record_places(self._split(part), part, positions, rejected)

    def files(self, part: Part, positions: npt.NDArray[np.int64]) -> list[str] | None:
        return record_files(self._split(part), part, positions)

    def _split(self, part: Part) -> Source:
        assert isinstance(part, SplitPart)
        return self.splits[part.split]

    def _draft(self, batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
        if isinstance(part, SplitPart) and not isinstance(self._split(part), RecordSource):  # for `complete`
            return batch.append_column(_SPLIT, pa.repeat(pa.scalar(part.split, pa.int16()), batch.num_rows))
        return batch.select(list(self.schema.names)) if batch.schema.names != list(self.schema.names) else batch


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckableSplitSource(SplitSource):
    """A `SplitSource` of sources that are `CheckableSource`s."""

    def check(self, part: Part, reject: Reject, fault: ImageCheck = image_fault) -> Iterator[pa.Array]:
        """Find the drafts of a part that `complete` would fail on."""
        split = self._split(part)
        assert isinstance(split, CheckableSource)
        return split.check(part, reject, fault)


def open_splits(url: str, patterns: Mapping[str, str], opened: Open) -> SplitSource:
    """Open the files of each split.

    Where the types of numbers or text differ between splits, each is opened again with a type that holds all.

    Args:
        url: URL of a folder.
        patterns: name, folder or glob of each split's files below it, by the name of the split.
        opened: opens the source at a URL, with types of columns that would be inferred.

    Raises:
        SourceError: a split has no files, or other columns than the first, or a file is in two splits.
    """
    urls = {name: _joined(url, pattern) for name, pattern in patterns.items()}
    sources = [opened(each, {}) for each in urls.values()]
    if common := _common_types([source.schema for source in sources]):
        sources = [opened(each, common) for each in urls.values()]
    names = list(patterns)
    for name, source in zip(names, sources, strict=True):
        _check_schema(url, names[0], sources[0].schema, name, source.schema)
    _check_disjoint(names, sources)
    kind = _CheckableSplitSource if isinstance(sources[0], CheckableSource) else SplitSource
    facts = [fact for name, source in zip(names, sources, strict=True) for fact in (name, source.fingerprint)]
    return kind(
        url=url,
        splits=tuple(map(select_part, sources)),
        parts=tuple(_in_split(part, number) for number, source in enumerate(sources) for part in source.parts),
        schema=sources[0].schema,
        fingerprint=f"{derive_key(*facts):016x}",
        left_out=tuple({name: None for each in sources if isinstance(each, SelectiveSource) for name in each.left_out}),
        class_names=_common_class_names(url, names, sources),
    )


def _common_class_names(url: str, names: Sequence[str], sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the names of the label's classes, which must be the same in all splits."""
    class_names = [each.class_names if isinstance(each, NamedClassesSource) else () for each in sources]
    odd = next((name for name, other in zip(names, class_names, strict=True) if other != class_names[0]), None)
    if odd is not None:
        label = sources[0].schema.label
        raise SourceError(
            f"{url}: Hugging Face's metadata name the classes of {label!r} otherwise in the split {odd!r} than in "
            f"{names[0]!r}, so their numbers may differ; keep the numbers with --cast {label}=int64"
        )
    return class_names[0]


def _in_split(part: Part, split: int) -> SplitPart:
    return SplitPart(path=part.path, pieces=part.pieces, first_record=part.first_record, split=split)


def _check_disjoint(names: Sequence[str], sources: Sequence[Source]) -> None:
    splits: dict[str, str] = {}
    for name, source in zip(names, sources, strict=True):
        for part in source.parts:
            other = splits.setdefault(repr((part.path, part.pieces)), name)
            if other != name:
                raise SourceError(
                    f"--split-files puts {part.path} in the splits {other!r} and {name!r}, so records of one would be "
                    "in the other; change their patterns"
                )


def _joined(url: str, pattern: str) -> str:
    folder, chain = split_chain(url)
    return f"{folder.rstrip('/')}/{pattern.strip('/')}{chain}"


def _common_types(schemas: Sequence[Schema]) -> dict[str, Feature]:
    """Return a type for each scalar column of numbers or text whose type differs between schemas."""
    result: dict[str, Feature] = {}
    for feature in schemas[0].features:
        features = [schema[feature.name] for schema in schemas if feature.name in schema.names]
        dtypes = {other.dtype for other in features}
        if len(dtypes) > 1 and all(other.shape == () and not other.encoding for other in features):
            numbers = not any(other.logical for other in features) and dtypes <= {"int64", "uint64", "float64"}
            dtype = "string" if not numbers else "float64" if "float64" in dtypes else "uint64"
            result[feature.name] = Feature(name=feature.name, dtype=dtype)
    return result


def _check_schema(url: str, first: str, wanted: Schema, name: str, given: Schema) -> None:
    missing = sorted(set(wanted.names) ^ set(given.names))
    if missing:
        has = first if missing[0] in wanted.names else name
        raise SourceError(
            f"{url}: the split {has!r} has a column {missing[0]!r}, and {name if has == first else first!r} has none; "
            "the splits must have the same columns, so build them apart, or leave that column out of the files"
        )
    for feature in wanted.features:
        if (other := given[feature.name]) != feature:
            kinds = (f"{each.logical or each.dtype}{list(each.shape) or ''}" for each in (feature, other))
            raise SourceError(
                f"{url}: the column {feature.name!r} is {next(kinds)} in the split {first!r}, and {next(kinds)} in "
                f"{name!r}; give it one type with --schema"
            )
