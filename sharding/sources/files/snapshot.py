"""Remembers the files of a source as they were listed, so that a build can check at its end that none changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash


class SourceFile(NamedTuple):
    """A file of a source, with its size and version as the store's listing gives them."""

    url: str
    bytes: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """A listing of files, in 16 bytes a file: there may be millions."""

    url: str  # path, folder or glob that was listed
    suffixes: tuple[str, ...]  # endings of the files' names
    names: npt.NDArray[np.uint64]  # hashes of the files' URLs, uint64 [files], ascending
    contents: npt.NDArray[np.uint64]  # hashes of the files' sizes and versions, uint64 [files], in the same order

    @classmethod
    def of(cls, url: str, suffixes: Sequence[str], files: Sequence[SourceFile]) -> Listing:
        """Return the listing of these files."""
        names, contents = _hashes(files)
        order = np.argsort(names)
        return cls(url=url, suffixes=tuple(suffixes), names=names[order], contents=contents[order])

    def first_changed(self, files: Sequence[SourceFile]) -> str | None:
        """Return the URL of the first file that differs from its listing, ignoring unlisted ones; None: none does."""
        names, contents = _hashes(files)
        places = np.searchsorted(self.names, names).clip(max=len(self.names) - 1)
        changed = np.flatnonzero((self.names[places] == names) & (self.contents[places] != contents))
        return files[changed[0]].url if len(changed) else None


def _hashes(files: Sequence[SourceFile]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    digest = xxhash.xxh3_64_intdigest
    names = np.fromiter((digest(file.url.encode(errors="surrogateescape")) for file in files), np.uint64, len(files))
    contents = np.fromiter((digest(f"{file.bytes} {file.version}".encode()) for file in files), np.uint64, len(files))
    return names, contents


_recorded: ContextVar[dict[str, Listing] | None] = ContextVar("recorded", default=None)


@contextmanager
def record_listings() -> Iterator[dict[str, Listing]]:
    """Collect the last listing of every path that the body lists."""
    recorded: dict[str, Listing] = {}
    token = _recorded.set(recorded)
    try:
        yield recorded
    finally:
        _recorded.reset(token)


def record_listing(url: str, suffixes: Sequence[str], files: Sequence[SourceFile]) -> None:
    """Add a listing to those that `record_listings` collects, if it is active."""
    recorded = _recorded.get()
    if recorded is not None and files:
        recorded[url] = Listing.of(url, suffixes, files)
