"""Which kind of source a URL is, by the names of its files."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import SourceError
from .base import Source, list_files
from .csv import CsvSource
from .hdf5 import SUFFIXES as HDF5_SUFFIXES
from .hdf5 import Hdf5Source
from .idx import SUFFIXES as IDX_SUFFIXES
from .idx import IdxSource
from .image_list import ImageListSource
from .images import SUFFIXES as IMAGE_SUFFIXES
from .images import ImageFolderSource
from .npy import SUFFIXES as NPY_SUFFIXES
from .npy import NpySource
from .parquet import ParquetSource
from .selection import split_selection

__all__ = ["KINDS", "open_source"]

_OPENERS: dict[str, tuple[tuple[str, ...], Callable[[str, str | None], Source]]] = {
    "parquet": ((".parquet", ".pq"), ParquetSource.open),
    "csv": ((".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zst"), CsvSource.open),
    "images": (IMAGE_SUFFIXES, ImageFolderSource.open),
    "image-list": ((), lambda url, label: ImageListSource.open(url, label, open_source)),
    "idx": (IDX_SUFFIXES, IdxSource.open),
    "numpy": (NPY_SUFFIXES, NpySource.open),
    "hdf5": (HDF5_SUFFIXES, Hdf5Source.open),
}
KINDS = tuple(_OPENERS)


def open_source(url: str, label: str | None, kind: str = "auto") -> Source:
    """Open a dataset to be sharded.

    Args:
        url: of a file, a folder or a glob, local or whatever fsspec opens.
        label: the column that classes are made of; None for data without. Image folders and IDX files have one in
            any case, and name it so (by default ``label``).
        kind: one of `KINDS`, or ``auto``: by the files' names.

    Raises:
        SourceError: nothing is there, it is of no known kind, or it cannot be read.
    """
    if kind == "auto":
        kind = _detect(url)
    return _OPENERS[kind][1](url, label)


def _detect(url: str) -> str:
    suffixes_known = [suffix for known, _ in _OPENERS.values() for suffix in known]
    files = [file.url.lower() for file in list_files(split_selection(url)[0], suffixes_known, facts=False)]
    found = [kind for kind, (suffixes, _) in _OPENERS.items() if any(name.endswith(suffixes) for name in files)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SourceError(f"{url} holds files of several kinds ({', '.join(found)}); say which with --source-kind")
    known = ", ".join(suffixes[0] for suffixes, _ in _OPENERS.values() if suffixes)
    raise SourceError(
        f"{url} holds no records: no file of a known kind ({known}, ...); if there is one by another name, say "
        f"--source-kind {'|'.join(KINDS)}"
    )
