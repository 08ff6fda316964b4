"""Which kind of source a URL is, by the names of its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..dataset.manifest import MANIFEST_NAME
from ..errors import SourceError
from ..schema import Feature
from ..storage.urls import url_text
from .arrays.hdf5 import SUFFIXES as HDF5_SUFFIXES
from .arrays.hdf5 import Hdf5Source
from .arrays.idx import SUFFIXES as IDX_SUFFIXES
from .arrays.idx import IdxSource
from .arrays.npy import SUFFIXES as NPY_SUFFIXES
from .arrays.npy import NpySource
from .arrays.url_selection import split_selection
from .base import NO_FEATURES, Reject, Source, fail_on_bad
from .files.find import SourceFile, list_files, plain_name
from .images.class_folders import SUFFIXES as IMAGE_SUFFIXES
from .images.class_folders import ImageFolderSource
from .images.image_list import ImageListSource
from .records.python_function import IterableSource
from .records.tfrecord import SUFFIXES as TFRECORD_SUFFIXES
from .records.tfrecord import TFRecordSource
from .records.webdataset import SUFFIXES as TAR_SUFFIXES
from .records.webdataset import WebDatasetSource, expand_braces
from .ringfeed import RingfeedSource, find_dataset
from .tables.ipc import SUFFIXES as IPC_SUFFIXES
from .tables.ipc import IpcSource
from .tables.orc import SUFFIXES as ORC_SUFFIXES
from .tables.orc import OrcSource
from .tables.parquet import SUFFIXES as PARQUET_SUFFIXES
from .tables.parquet import ParquetSource
from .text.csv import SUFFIXES as CSV_SUFFIXES
from .text.csv import CsvSource
from .text.jsonl import SUFFIXES as JSONL_SUFFIXES
from .text.jsonl import JsonlSource

__all__ = ["KINDS", "open_source"]

_OPENERS: dict[str, tuple[tuple[str, ...], Callable[..., Source]]] = {
    "ringfeed": ((f"/{MANIFEST_NAME}",), RingfeedSource.open),
    "parquet": (PARQUET_SUFFIXES, ParquetSource.open),
    "ipc": (IPC_SUFFIXES, IpcSource.open),
    "orc": (ORC_SUFFIXES, OrcSource.open),
    "csv": (CSV_SUFFIXES, CsvSource.open),
    "jsonl": (JSONL_SUFFIXES, JsonlSource.open),
    "images": (IMAGE_SUFFIXES, ImageFolderSource.open),
    "image-list": ((), lambda url, label: ImageListSource.open(url, label, open_source)),
    "idx": (IDX_SUFFIXES, IdxSource.open),
    "numpy": (NPY_SUFFIXES, NpySource.open),
    "hdf5": (HDF5_SUFFIXES, Hdf5Source.open),
    "tfrecord": (TFRECORD_SUFFIXES, TFRecordSource.open),
    "webdataset": (TAR_SUFFIXES, WebDatasetSource.open),
    "python": ((), IterableSource.open),
}
_INFERRING = {"csv", "jsonl", "tfrecord"}  # kinds whose files do not say the types: they can be given
_TABLES = {"parquet", "ipc", "orc"}  # kinds that need a type for columns which have none, or several
_CHOOSING = {  # kinds of which columns can be left out beforehand
    "parquet", "ipc", "orc", "csv", "jsonl", "hdf5", "numpy", "webdataset", "python",
}  # fmt: skip
KINDS = tuple(_OPENERS)


def open_source(
    url: str | os.PathLike[str],
    label: str | None,
    kind: str = "auto",
    features: Mapping[str, Feature] = NO_FEATURES,
    reject: Reject = fail_on_bad,
    wanted: Callable[[str], bool] = lambda _: True,
    casts: Mapping[str, Feature] = NO_FEATURES,
) -> Source:
    """Open a dataset to be sharded.

    Args:
        url: URL or path of a file, a folder or a glob, local or whatever fsspec opens; or ``module:function`` of kind
            ``python``.
        label: the column that classes are made of; None for data without. Image folders and IDX files have one in
            any case, and name it so (by default ``label``).
        kind: one of `KINDS`, or ``auto``: by the files' names.
        features: types of columns, by name, for kinds whose types would else be inferred, and for columns of tables
            that have none that a feature can hold. Others pass over them.
        reject: called with each record that cannot be read while types are inferred. What is passed over then must
            be passed over by `Source.labels` and `Source.drafts` too, which meet it again.
        wanted: whether a column is, by its name: of most kinds, others may have types that no feature can hold.
        casts: types that columns are brought into later, by name: of tables, they are used as `features` are.

    Raises:
        SourceError: nothing is there, it is of no known kind, or it cannot be read.
        ConfigError: types are given for columns that are not there.
    """
    url, files = url_text(url, "source"), None
    if kind == "auto":
        kind, files = _detect(url)
    if kind == "images":
        return ImageFolderSource.open(url, label, files)
    told: dict[str, Any] = {"features": features, "reject": reject} if kind in _INFERRING else {}
    if kind in _TABLES:
        told["features"] = {**casts, **features}
    if kind in _CHOOSING:
        told["wanted"] = wanted
    source = _OPENERS[kind][1](url, label, **told)
    if not source.schema.features:
        raise SourceError(f"{url} holds records without columns; give them at least one")
    if zero := next((name for name in source.schema.names if "\0" in name and wanted(name)), ""):
        raise SourceError(f"{url}: the column name {zero!r} holds a zero byte, as names of our own do; rename it")
    return source


def _detect(url: str) -> tuple[str, Sequence[SourceFile] | None]:
    """The kind of a source; and its files, if they had to be listed for it, and all are of the source."""
    if find_dataset(url):  # its shards are files of other kinds
        return "ringfeed", None
    suffixes = [suffix for known, _ in _OPENERS.values() for suffix in known]
    first = expand_braces(split_selection(url)[0])[0]
    files = list_files(first, suffixes)
    found = _kinds_of(plain_name(file.url) for file in files)
    if len(found) == 1:
        return found[0], files if first == url else None
    if found:
        raise SourceError(f"{url} holds files of several kinds ({', '.join(found)}); say which with --source-kind")
    if "::" not in url and url.endswith(".zip"):
        raise SourceError(f"{url} is an archive; name what is to be read of it, or all: zip://::{url}")
    known = ", ".join(suffixes[0] for suffixes, _ in _OPENERS.values() if suffixes)
    raise SourceError(
        f"{url} holds no records: no file of a known kind ({known}, ...); if there is one by another name, say "
        f"--source-kind {'|'.join(KINDS)}"
    )


def _kinds_of(names: Iterable[str]) -> list[str]:
    """The kinds that there are files of; no suffix of one kind ends in one of another."""
    found: set[str] = set()
    suffixes: tuple[str, ...] = ()
    for name in names:
        if not name.endswith(suffixes):
            found |= {kind for kind, (known, _) in _OPENERS.items() if name.endswith(known)}
            suffixes = tuple(suffix for kind in found for suffix in _OPENERS[kind][0])
    return [kind for kind in _OPENERS if kind in found]
