"""Opens a source of a given kind, or of the kind that the names of its files show."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.storage.urls import normalize_url
from ringfeed.sharding.url_secrets import public_url

from .arrays.hdf5 import Hdf5Source
from .arrays.idx import IdxSource
from .arrays.npy import NpySource
from .arrays.url_selection import split_selection
from .base import NO_FEATURES, OWN_SIZES, ReadSizes, Reject, Source, fail_on_bad
from .files.find import list_files, plain_name
from .files.http_listing import is_web
from .files.snapshot import SourceFile
from .images.class_folders import ImageFolderSource
from .images.image_list import ImageListSource
from .records.python_function import IterableSource
from .records.tfrecord import TFRecordSource
from .records.webdataset import WebDatasetSource, expand_braces
from .ringfeed import RingfeedSource, find_dataset
from .tables.ipc import IpcSource
from .tables.memory import MemoryRecords, MemorySource
from .tables.orc import OrcSource
from .tables.parquet import ParquetSource
from .tables.table_files import TableSource
from .text.csv import CsvSource
from .text.csv_dialect import CsvDialect
from .text.jsonl import JsonlSource, JsonSource

_SOURCES: dict[str, Any] = {
    "ringfeed": RingfeedSource,
    "parquet": ParquetSource,
    "ipc": IpcSource,
    "orc": OrcSource,
    "csv": CsvSource,
    "jsonl": JsonlSource,
    "json": JsonSource,
    "images": ImageFolderSource,
    "image-list": ImageListSource,
    "idx": IdxSource,
    "numpy": NpySource,
    "hdf5": Hdf5Source,
    "tfrecord": TFRecordSource,
    "webdataset": WebDatasetSource,
    "python": IterableSource,
}

KINDS = tuple(_SOURCES)
_TEXTS = (".txt", ".data", ".dat", ".tab", ".asc")  # endings of tables, among other texts


def known_suffixes() -> tuple[str, ...]:
    """Return the endings of the files of all kinds but JSON, whose files beside others describe these."""
    return tuple(suffix for kind, source in _SOURCES.items() if kind != "json" for suffix in source.suffixes)


def kind_of(url: str | os.PathLike[str] | MemoryRecords) -> str:
    """Return the kind of a source that the names of its files show; ``table`` for records that were in memory.

    Raises:
        SourceError: there is nothing at the URL, or its files are of no kind or of several.
    """
    return "table" if isinstance(url, MemoryRecords) else _detect(normalize_url(url, "source"))[0]


def open_source(
    url: str | os.PathLike[str] | MemoryRecords,
    label: str | None,
    kind: str = "auto",
    features: Mapping[str, Feature] = NO_FEATURES,
    reject: Reject = fail_on_bad,
    wanted: Callable[[str], bool] = lambda _: True,
    casts: Mapping[str, Feature] = NO_FEATURES,
    null_values: tuple[str, ...] = (),
    images_from: tuple[str, ...] = (),
    csv: CsvDialect | None = None,
    unlabelled: bool = False,
    sizes: ReadSizes = OWN_SIZES,
) -> Source:
    """Open a dataset to be sharded.

    The `open` of a kind takes `url`, `label`, and what it supports of the other parameters.

    Args:
        url: URL or path of a file, a folder or a glob, on any file system of fsspec; ``module:function`` for kind
            ``python``; or records that were in memory.
        label: column of the classes, or None. Image folders and IDX files always have labels; this names their column
            (default ``label``).
        kind: one of `KINDS`, or ``auto`` to go by the files' names.
        features: declared types, by column name: for kinds that would infer them, and for columns of tables whose
            type no feature can hold. Other kinds ignore them.
        reject: called with each unreadable record while types are inferred; `labels` and `drafts` meet these records
            again, and must skip the same ones.
        wanted: whether the build needs a column of this name; in most kinds, others may have any type.
        casts: types that columns are cast to later, by name; for tables they act like `features`.
        null_values: texts of CSV that mean null, in columns of every type.
        images_from: folders, besides its own, that a list of images may name files in.
        csv: how CSV is written; None: in UTF-8 with a header.
        unlabelled: whether the records are to be scored: images may lie in no class folder, and no text is reported
            that may mean a missing value.
        sizes: how much of a file is read at a time, and how large parts are.

    Raises:
        SourceError: there is nothing at the URL, its kind is unknown, or it cannot be read.
        ConfigError: a type is declared for a missing column, or the kind takes no `null_values` or no `csv`.
    """
    files: Sequence[SourceFile] | None = None
    if isinstance(url, MemoryRecords):
        kind = "table"
    else:
        url = normalize_url(url, "source")
        _refuse_version(url)
        if kind == "auto":
            kind, files = _detect(url)
    kind_of_source: Any = MemorySource if isinstance(url, MemoryRecords) else _SOURCES[kind]
    if issubclass(kind_of_source, TableSource):
        features = {**casts, **features}
    if kind_of_source not in (CsvSource, ImageListSource):
        _refuse_options_of_csv(f"{url} is of kind {kind}", null_values, csv)
    options = {
        "features": features,
        "reject": reject,
        "wanted": wanted,
        "files": files,
        "open_table": partial(open_source, null_values=null_values, csv=csv),
        "null_values": null_values,
        "images_from": images_from,
        "csv": csv,
        "unlabelled": unlabelled,
        "sizes": sizes,
    }
    opened = kind_of_source.open_records if isinstance(url, MemoryRecords) else kind_of_source.open
    supported = inspect.signature(opened).parameters
    source: Source = opened(url, label, **{name: options[name] for name in supported if name in options})
    _check_names(source.schema.names, wanted, url)
    return source


def _refuse_options_of_csv(what: str, null_values: tuple[str, ...], csv: CsvDialect | None) -> None:
    if null_values:
        raise ConfigError(f"--null-values is for CSV and TSV, and {what}; use --filter or --map")
    if csv is not None and csv.recorded():
        raise ConfigError(
            f"--header, --columns, --delimiter, --encoding and --decimal are for CSV and TSV, and {what}; leave them "
            "out, or say --source-kind csv"
        )


def _check_names(names: Sequence[str], wanted: Callable[[str], bool], url: str | MemoryRecords) -> None:
    if not names:
        raise SourceError(f"{url} holds records without columns; give them at least one")
    if zero := next((name for name in names if "\0" in name and wanted(name)), ""):
        raise SourceError(
            f"{url}: the column name {zero!r} holds a zero byte, which is reserved for internal columns; rename it"
        )


def _refuse_version(url: str) -> None:
    if "?versionId=" in url and not is_web(url):
        raise SourceError(
            f"{public_url(url)} names a version of an object, and only the current one can be read; copy that "
            "version to a key of its own (aws s3api get-object --version-id ...), or name it by an https link"
        )


def _detect(url: str) -> tuple[str, Sequence[SourceFile] | None]:
    """Return the kind of a source, and its files if they were listed on the way and are all of the source's."""
    if find_dataset(url):  # its shards look like sources of other kinds
        return "ringfeed", None
    first = expand_braces(split_selection(url)[0])[0]
    files = list_files(first, known_suffixes()) or list_files(first, JsonSource.suffixes)
    kinds = _kinds_of(plain_name(file.url) for file in files)
    if len(kinds) == 1:
        return kinds[0], files if first == url else None
    if kinds:
        raise SourceError(f"{url} holds files of several kinds ({', '.join(kinds)}); say which with --source-kind")
    if "::" not in url and url.endswith(".zip"):
        raise SourceError(f"{url} is an archive; name the files to read in it, or read all with zip://::{url}")
    known = ", ".join(source.suffixes[0] for source in _SOURCES.values() if source.suffixes)
    table = "--source-kind csv for a table in text, or " if url.endswith(_TEXTS) else ""
    raise SourceError(
        f"{url} holds no records: no file has a known ending ({known}, ...); if its files are named otherwise, say "
        f"{table}--source-kind {'|'.join(KINDS)}"
    )


def _kinds_of(names: Iterable[str]) -> list[str]:
    """Return the kinds of the files, in the order of `KINDS`; no suffix of one kind ends in a suffix of another."""
    kinds: set[str] = set()
    suffixes: tuple[str, ...] = ()
    for name in names:
        if not name.endswith(suffixes):
            kinds |= {kind for kind, source in _SOURCES.items() if name.endswith(source.suffixes)}
            suffixes = tuple(suffix for kind in kinds for suffix in _SOURCES[kind].suffixes)
    return [kind for kind in _SOURCES if kind in kinds]
