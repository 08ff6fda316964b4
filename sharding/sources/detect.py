"""Which kind of source a URL is, by the names of its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import ConfigError, SourceError
from ..schema import Feature
from .base import NO_FEATURES, Reject, Source, fail_on_bad, list_files
from .csv import SUFFIXES as CSV_SUFFIXES
from .csv import CsvSource
from .idx import SUFFIXES as IDX_SUFFIXES
from .idx import IdxSource
from .images import SUFFIXES as IMAGE_SUFFIXES
from .images import ImageFolderSource
from .jsonl import SUFFIXES as JSONL_SUFFIXES
from .jsonl import JsonlSource
from .parquet import ParquetSource

__all__ = ["KINDS", "open_source"]

_OPENERS: dict[str, tuple[tuple[str, ...], Callable[..., Source]]] = {
    "parquet": ((".parquet", ".pq"), ParquetSource.open),
    "csv": (CSV_SUFFIXES, CsvSource.open),
    "jsonl": (JSONL_SUFFIXES, JsonlSource.open),
    "images": (IMAGE_SUFFIXES, ImageFolderSource.open),
    "idx": (IDX_SUFFIXES, IdxSource.open),
}
_INFERRING = {"csv", "jsonl"}  # kinds whose files do not say the types: they can be given, and lines met that have none
KINDS = tuple(_OPENERS)


def open_source(
    url: str,
    label: str | None,
    kind: str = "auto",
    features: Mapping[str, Feature] = NO_FEATURES,
    reject: Reject = fail_on_bad,
) -> Source:
    """Open a dataset to be sharded.

    Args:
        url: of a file, a folder or a glob, local or whatever fsspec opens.
        label: the column that classes are made of; None for data without. Image folders and IDX files have one in
            any case, and name it so (by default ``label``).
        kind: one of `KINDS`, or ``auto``: by the files' names.
        features: types of columns, by name, for kinds whose types would else be inferred.
        reject: called with each record that cannot be read while types are inferred. What is passed over then must
            be passed over by `Source.labels` and `Source.drafts` too, which meet it again.

    Raises:
        SourceError: nothing is there, it is of no known kind, or it cannot be read.
        ConfigError: types are given for a kind of source that has its own, or for columns that are not there.
    """
    if kind == "auto":
        kind = _detect(url)
    if kind in _INFERRING:
        return _OPENERS[kind][1](url, label, features, reject)
    if features:
        raise ConfigError(
            f"{url} is of kind {kind}, which says the types of its columns itself; types can be given for "
            f"{', '.join(sorted(_INFERRING))}"
        )
    return _OPENERS[kind][1](url, label)


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
