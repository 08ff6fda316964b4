"""The manifest of a dataset, `dataset.json`: the record that commits it. The shard table is in `shard_table.py`.

Pure: bytes in, values out. `dataset.py` reads the file, `consistency.py` checks it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.common.json_stream import json_pieces
from ringfeed.sharding.common.validation import SCALARS, Scalar, fit
from ringfeed.sharding.compute.class_counts import ClassCounts
from ringfeed.sharding.errors import CorruptionError, DatasetError
from ringfeed.sharding.formats.example_encode import RecordLayout
from ringfeed.sharding.formats.parquet_types import stored_schema
from ringfeed.sharding.schema import Schema
from ringfeed.sharding.storage.file_contents import FileInfo
from ringfeed.sharding.storage.untrusted_files import load_json

from .file_names import MANIFEST_NAME, NAMES, OLD_NAMES, FileNames, names_of
from .statistics import FeatureStatistics

READ_VERSIONS = (1, 2)  # major versions


def _json_integer(value: object) -> int:
    """No integer of a dataset has more than 64 bits; another program may have written one that has."""
    if type(value) is not int or abs(value) >= 1 << 64:
        raise TypeError
    return value


_SCALARS = {**SCALARS, int: Scalar("an integer of 64 bits", _json_integer)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """One shard: a data file and its index, with paths relative to the dataset's root.

    Its `class_counts` are a tuple, or `ClassCounts`, which compare equal to one.

    >>> from ringfeed.sharding import open_dataset
    >>> shard = open_dataset("flights").shards[0]
    >>> shard.split, shard.records
    ('train', 80)
    """

    split: str
    path: str
    bytes: int
    records: int
    checksum: str
    class_counts: Sequence[int]
    index_path: str
    index_bytes: int
    index_checksum: str

    def __post_init__(self) -> None:
        for path in (self.path, self.index_path):
            _check_inside(path, "the shard table")

    @property
    def files(self) -> dict[str, FileInfo]:
        """Its two files by path, the data file first."""
        return {
            self.path: FileInfo(bytes=self.bytes, checksum=self.checksum),
            self.index_path: FileInfo(bytes=self.index_bytes, checksum=self.index_checksum),
        }

    @property
    def dali_path(self) -> str:
        """Path of its index for NVIDIA DALI, if it has one."""
        return names_of(self.index_path).dali(self.path)


def _check_inside(path: str, where: str) -> None:
    if "/" not in path and "\\" not in path and path not in ("", ".", ".."):
        return  # the quick way for nearly all of many thousands
    parts = path.split("/")
    nowhere = {"", "."}.issuperset(parts)
    if nowhere or path.startswith("/") or ".." in parts or "\\" in path or "://" in path:
        raise DatasetError(f"the path {path!r} in {where} leaves the dataset's root, so it is not opened")


def file_info(data: bytes) -> FileInfo:
    """Return the size and checksum of a file's bytes."""
    return FileInfo(bytes=len(data), checksum=checksum(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitInfo:
    """One split: totals over its shards, and the statistics of its features by name.

    >>> from ringfeed.sharding import open_dataset
    >>> split = open_dataset("flights").manifest.split("train")
    >>> split.records, split.shards
    (320, 4)
    """

    records: int
    shards: int
    class_counts: Sequence[int]
    statistics: Mapping[str, FeatureStatistics] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return its entry in `dataset.json`."""
        value = asdict(replace(self, class_counts=(), statistics={}))
        statistics = {name: entry.to_json() for name, entry in self.statistics.items()}
        return value | {"class_counts": list(self.class_counts), "statistics": statistics}  # the keys stay in order

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SplitInfo:
        """Invert `to_json`."""
        return cls(
            records=value["records"],
            shards=value["shards"],
            class_counts=ClassCounts(value["class_counts"]),
            statistics={name: FeatureStatistics.from_json(entry) for name, entry in value["statistics"].items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecords:
    """Records of one shard that were damaged beyond repair; the shard is gone or replaced.

    >>> from ringfeed.sharding import repair
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(bytes(100))
    >>> [(lost.split, lost.records) for lost in repair("flights").lost]
    [('train', 80)]
    """

    split: str
    path: str
    records: int
    class_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a build, or an append, added to a dataset.

    Attributes:
        plan: fingerprint of everything that shaped its bytes.
        source: where its records came from: ``url`` and ``fingerprint``.
        seed: seed of its assignment.
        options: options given, or derived from the dataset, that shape the bytes.
        writer: name and version of the program that wrote it.
        classes: number of classes of the dataset after it.
        records: records written, by split.
        shards: shards written, by split.
        layout: layout shared by its records, if a later append left the dataset without a shared one.

    >>> from ringfeed.sharding import append
    >>> manifest = append(source="flights.parquet", destination="flights", seed=5, again=True)
    >>> [generation.seed for generation in manifest.generations]
    [0, 5]
    """

    plan: str
    source: Mapping[str, str]
    seed: int
    options: Mapping[str, Any]
    writer: str
    classes: int
    records: Mapping[str, int]
    shards: Mapping[str, int]
    layout: RecordLayout | None = None

    def to_json(self) -> dict[str, Any]:
        """Return its entry in `dataset.json`."""
        value = asdict(replace(self, layout=None)) | {"layout": self.layout and self.layout.to_json()}
        return {name: entry for name, entry in value.items() if entry is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Generation:
        """Invert `to_json`."""
        layout = value.get("layout")
        return cls(**(dict(value) | {"layout": layout and RecordLayout.from_json(layout)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `dataset.json`.

    Attributes:
        shard_format: ``tfrecord`` or ``parquet``.
        compression: compression of the shards: ``none``, ``gzip``, ...
        schema: features and label.
        classes: values of the label, in the order of their class ids: sorted, but those new in an append come after the
            earlier ones. ``(None,)`` without a label.
        splits: splits by name, in the order given.
        layout: where each column lies in a TFRecord record, if all records share one layout.
        seed: seed of the assignment.
        source: where the data came from: ``url`` and ``fingerprint``.
        options: options of the build that shape the bytes.
        writer: name and version of the program that wrote it.
        plan: fingerprint of everything that shaped the bytes: builds with the same plan write the same dataset.
        shards_checksum: checksum of the shard table.
        shards_bytes: size of the shard table.
        shards_rows: checksum of the table's rows, independent of the version of Arrow that encoded them.
        shards_path: path of the shard table; a repair that leaves records out writes a table of another name.
        files: companion files of other programs, by path.
        lost: records that such repairs left out. The statistics of the splits still cover all records written.
        generations: what the build and each append added; empty if nothing was appended. `seed`, `source`, `options`,
            `writer` and `plan` describe the build.
        declares_meanings: whether its Parquet shards have types of times or ordered categories, so that it is of format
            version 2.

    >>> from ringfeed.sharding import open_dataset
    >>> manifest = open_dataset("flights").manifest
    >>> manifest.classes, manifest.schema.label, manifest.split("test").records
    (('late', 'on time'), 'arrival', 80)
    """

    shard_format: str
    compression: str
    schema: Schema
    classes: tuple[Any, ...]
    splits: Mapping[str, SplitInfo]
    layout: RecordLayout | None
    seed: int
    source: Mapping[str, str]
    options: Mapping[str, Any]
    writer: str
    plan: str = ""
    shards_checksum: str = ""
    shards_bytes: int = 0
    shards_rows: str = ""
    shards_path: str = NAMES.table(0)
    files: Mapping[str, FileInfo] = field(default_factory=dict)
    lost: tuple[LostRecords, ...] = ()
    generations: tuple[Generation, ...] = ()
    declares_meanings: bool = False

    def __post_init__(self) -> None:
        for path in (self.shards_path, *self.files):
            _check_inside(path, MANIFEST_NAME)

    @property
    def names(self) -> FileNames:
        """The names of the dataset's files."""
        return names_of(self.shards_path)

    @property
    def declares_tensors(self) -> bool:
        """Whether its Parquet shards declare the shapes of tensors; those of earlier versions do not."""
        return self.names == NAMES

    @property
    def stored_schema(self) -> pa.Schema:
        """The Arrow schema of its Parquet shards."""
        return stored_schema(self.schema, tensors=self.declares_tensors, meanings=self.declares_meanings)

    @property
    def records(self) -> int:
        """Number of records in all splits."""
        return sum(split.records for split in self.splits.values())

    @property
    def all_generations(self) -> tuple[Generation, ...]:
        """The recorded generations, or the only one."""
        if self.generations:
            return self.generations
        built = Generation(
            plan=self.plan,
            source=self.source,
            seed=self.seed,
            options=self.options,
            writer=self.writer,
            classes=len(self.classes),
            records={name: split.records for name, split in self.splits.items()},
            shards={name: split.shards for name, split in self.splits.items()},
        )
        return (built,)

    @property
    def written(self) -> dict[str, ClassCounts]:
        """Records of each class by split as written, including those that repairs left out."""
        counts = {name: np.array(split.class_counts, np.int64) for name, split in self.splits.items()}
        for entry in self.lost:
            counts[entry.split] = counts.get(entry.split, 0) + np.array(entry.class_counts, np.int64)
        return {name: ClassCounts(of_split) for name, of_split in counts.items()}

    @property
    def identity(self) -> str:
        """Identifies the records, their order in the shards, and how they are decoded.

        Unlike `shards_checksum`, it is the same after a build of the same shards from a source that was found elsewhere
        or at another time. Datasets of earlier versions, without a checksum of rows, have that of the table.
        """
        if not self.shards_rows:
            return self.shards_checksum
        return checksum(_dump({"rows": self.shards_rows, "features": self.schema.to_json(), "classes": self.classes}))

    @property
    def identities(self) -> tuple[str, str]:
        """What states and checkpoints name the dataset by: `identity`, or earlier `shards_checksum`."""
        return self.identity, self.shards_checksum

    def layout_of(self, generation: int) -> RecordLayout | None:
        """Return the layout shared by the records of a generation, even if other generations differ."""
        return self.all_generations[generation].layout if self.layout is None else self.layout

    @property
    def file_compression(self) -> str:
        """Compression of a whole shard file; Parquet compresses its pages one by one."""
        return "none" if self.shard_format == "parquet" else self.compression

    def split(self, name: str) -> SplitInfo:
        """Return one split.

        Raises:
            DatasetError: there is no split of this name.
        """
        if name not in self.splits:
            raise DatasetError(f"there is no split {name!r}; the dataset has {', '.join(map(repr, self.splits))}")
        return self.splits[name]

    def encode(self) -> bytes:
        """Return the bytes of `dataset.json`: canonical JSON whose last key is the checksum of all before it."""
        table = {"path": self.shards_path, "bytes": self.shards_bytes, "checksum": self.shards_checksum}
        body = _dump(self.described() | {"shards": table | ({"rows": self.shards_rows} if self.shards_rows else {})})
        return _with_checksum(body, checksum(body))

    def described(self) -> dict[str, Any]:
        """Return everything but the description of the shard table, as JSON."""
        value = {
            "format_version": "2.0" if self.declares_meanings else "1.0",
            "shard_format": self.shard_format,
            "compression": self.compression,
            "features": self.schema.to_json(),
            "classes": list(self.classes),
            "splits": {name: split.to_json() for name, split in self.splits.items()},
            "layout": self.layout and self.layout.to_json(),
            "seed": self.seed,
            "source": dict(self.source),
            "options": dict(self.options),
            "writer": self.writer,
            "plan": self.plan,
        }
        if self.files:
            value["files"] = {path: asdict(info) for path, info in self.files.items()}
        value |= {"lost": [asdict(shard) for shard in self.lost]} if self.lost else {}
        return value | ({"generations": [entry.to_json() for entry in self.generations]} if self.generations else {})

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """Invert `encode`.

        Args:
            path: path of the file, for errors.

        Raises:
            CorruptionError: a byte differs from what was written.
            DatasetError: a newer version wrote it, or another program.
        """
        try:
            value = load_json(data)
            version = tuple(int(part) for part in value["format_version"].split("."))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptionError(f"{path} is damaged, or not a ringfeed dataset: {error}") from error
        if version[0] not in READ_VERSIONS:
            known = " and ".join(f"{major}.x" for major in READ_VERSIONS)
            raise DatasetError(
                f"{path} has format version {value['format_version']}, this ringfeed reads {known}; "
                "upgrade with: pip install --upgrade ringfeed"
            )
        stored = value.pop("checksum", None)
        try:
            body = _dump(value)
            intact = checksum(body) == stored and _with_checksum(body, stored) == data
        except (ValueError, RecursionError):  # a damaged number may be infinite; none is written
            intact = False
        if not intact:
            raise CorruptionError(f"{path} is damaged: its checksum does not match its content")
        return cls.restored(value, path)

    @classmethod
    def restored(cls, value: Mapping[str, Any], path: str) -> Manifest:
        """Restore a manifest from the JSON of `described`, with or without that of the table under ``shards``.

        Args:
            path: path of the file it came from, for errors.

        Raises:
            DatasetError: it is intact, but this version does not write such a manifest.
        """
        try:
            manifest = cls._restored(value)
            fit("", manifest, cls, _SCALARS)
            if any(generation.classes > len(manifest.classes) for generation in manifest.generations):
                raise ValueError("a generation has more classes than the dataset")
        except DatasetError:
            raise
        except Exception as error:  # a forged manifest may hold anything
            raise DatasetError(
                f"{path} is intact, but this version of ringfeed cannot read it "
                f"({type(error).__name__}: {error}); upgrade with: pip install --upgrade ringfeed"
            ) from error
        return manifest

    @classmethod
    def _restored(cls, value: Mapping[str, Any]) -> Manifest:
        table = value.get("shards", {"checksum": "", "bytes": 0})
        return cls(
            shard_format=value["shard_format"],
            compression=value["compression"],
            schema=Schema.from_json(value["features"]),
            classes=tuple(value["classes"]),
            splits={name: SplitInfo.from_json(split) for name, split in value["splits"].items()},
            layout=value["layout"] and RecordLayout.from_json(value["layout"]),
            seed=value["seed"],
            source=value["source"],
            options=value["options"],
            writer=value["writer"],
            plan=value.get("plan", ""),
            shards_checksum=table["checksum"],
            shards_bytes=table["bytes"],
            shards_rows=table.get("rows", ""),
            shards_path=table.get("path", OLD_NAMES.table(0)),
            files={path: FileInfo(**info) for path, info in value.get("files", {}).items()},
            lost=tuple(
                LostRecords(**(dict(entry) | {"class_counts": tuple(entry["class_counts"])}))
                for entry in value.get("lost", ())
            ),
            generations=tuple(map(Generation.from_json, value.get("generations", ()))),
            declares_meanings=value["format_version"].startswith("2."),
        )


def _dump(value: Mapping[str, Any]) -> bytes:
    sink = io.BytesIO()
    for piece in json_pieces(value, 1, ensure_ascii=False, allow_nan=False):
        sink.write(piece.encode("utf-8", "surrogatepass"))
    sink.write(b"\n")
    return sink.getvalue()


def _with_checksum(body: bytes, stored: str) -> bytes:
    """Append the checksum as the last key, as `_dump` would write it."""
    return body.removesuffix(b"\n}\n") + f',\n "checksum": {json.dumps(stored)}\n}}\n'.encode()
