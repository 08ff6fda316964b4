"""Which kind of source a URL is, by the names of its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import SourceError
from ..schema import Feature
from .base import Source, list_files
from .csv import CsvSource
from .idx import SUFFIXES as IDX_SUFFIXES
from .idx import IdxSource
from .images import SUFFIXES as IMAGE_SUFFIXES
from .images import ImageFolderSource
from .parquet import ParquetSource

__all__ = ["KINDS", "open_source"]

_OPENERS: dict[str, tuple[tuple[str, ...], Callable[..., Source]]] = {
    "parquet": ((".parquet", ".pq"), ParquetSource.open),
    "csv": ((".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zst"), CsvSource.open),
    "images": (IMAGE_SUFFIXES, ImageFolderSource.open),
    "idx": (IDX_SUFFIXES, IdxSource.open),
}
_INFERRING = {"csv"}  # kinds whose files do not say the types
KINDS = tuple(_OPENERS)


def open_source(
    url: str, label: str | None, kind: str = "auto", features: Mapping[str, Feature] | None = None
) -> Source:
    """Open a dataset to be sharded.

    Args:
        url: of a file, a folder or a glob, local or whatever fsspec opens.
        label: the column that classes are made of; None for data without. Image folders and IDX files have one in
            any case, and name it so (by default ``label``).
        kind: one of `KINDS`, or ``auto``: by the files' names.
        features: types of columns, by name, for kinds whose types would else be inferred. Others pass over them.

    Raises:
        SourceError: nothing is there, it is of no known kind, or it cannot be read.
    """
    if kind == "auto":
        kind = _detect(url)
    return _OPENERS[kind][1](url, label, features) if kind in _INFERRING else _OPENERS[kind][1](url, label)


def _detect(url: str) -> str:
    files = [
        file.url.lower() for file in list_files(url, [suffix for known, _ in _OPENERS.values() for suffix in known])
    ]
    found = [kind for kind, (suffixes, _) in _OPENERS.items() if any(name.endswith(suffixes) for name in files)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SourceError(f"{url} holds files of several kinds ({', '.join(found)}); say which with --source-kind")
    known = ", ".join(suffixes[0] for suffixes, _ in _OPENERS.values())
    raise SourceError(
        f"{url} holds no records: no file of a known kind ({known}, ...); if there is one by another name, say "
        f"--source-kind {'|'.join(KINDS)}"
    )
