"""What the files of a source were when it was opened, so that a build can tell whether they stayed so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = ["Listing", "SourceFile", "record_listing", "record_listings"]


class SourceFile(NamedTuple):
    """A file of a source: its URL, and what the store says of its content without opening it."""

    url: str
    bytes: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """Files as they were listed: 16 bytes of each, for there may be very many.

    Attributes:
        url: path, folder or glob.
        suffixes: of the names that were wanted.
        names: hashes of the files' URLs, ascending: uint64, shape (files,).
        contents: hashes of what the store said of each, in the same order.
    """

    url: str
    suffixes: tuple[str, ...]
    names: npt.NDArray[np.uint64]
    contents: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, url: str, suffixes: Sequence[str], files: Sequence[SourceFile]) -> Listing:
        """What is to be known of these files."""
        names, contents = _hashes(files)
        order = np.argsort(names)
        return cls(url=url, suffixes=tuple(suffixes), names=names[order], contents=contents[order])

    def changed_of(self, files: Sequence[SourceFile]) -> str | None:
        """The first of the files that was another when it was listed here; files that were not are none."""
        names, contents = _hashes(files)
        places = np.searchsorted(self.names, names).clip(max=len(self.names) - 1)
        changed = np.flatnonzero((self.names[places] == names) & (self.contents[places] != contents))
        return files[changed[0]].url if len(changed) else None


def _hashes(files: Sequence[SourceFile]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    digest = xxhash.xxh3_64_intdigest
    names = np.fromiter((digest(file.url.encode(errors="surrogateescape")) for file in files), np.uint64, len(files))
    contents = np.fromiter((digest(f"{file.bytes} {file.version}".encode()) for file in files), np.uint64, len(files))
    return names, contents


_noted: ContextVar[dict[str, Listing] | None] = ContextVar("noted", default=None)


@contextmanager
def record_listings() -> Iterator[dict[str, Listing]]:
    """Gather the last listing of every path that is listed in the body."""
    noted: dict[str, Listing] = {}
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def record_listing(url: str, suffixes: Sequence[str], files: Sequence[SourceFile]) -> None:
    """Tell of files that were listed; nothing is kept unless somebody gathers."""
    noted = _noted.get()
    if noted is not None and files:
        noted[url] = Listing.of(url, suffixes, files)
