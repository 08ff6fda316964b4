"""What web servers need beside other stores: pages list their folders, and some send no parts of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec

__all__ = ["is_page", "lacks_ranges", "with_sizes"]

_REQUESTS = 16  # at a time


def is_page(fs: fsspec.AbstractFileSystem, path: str) -> bool:
    """Whether what is there is a page, which lists the files of a folder."""
    return path.startswith(("http://", "https://")) and str(fs.info(path).get("mimetype", "")).startswith("text/html")


def with_sizes(fs: fsspec.AbstractFileSystem, infos: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What is known of files, with their sizes: pages do not tell them, so the server is asked for each file's."""

    def asked(info: dict[str, Any]) -> dict[str, Any]:
        return info if info.get("size") is not None else {**info, **fs.info(info["name"])}

    with ThreadPoolExecutor(_REQUESTS) as threads:
        yield from threads.map(asked, infos)


def lacks_ranges(error: Exception) -> bool:
    """Whether fsspec raised it, by way of Arrow perhaps, for a server that sends no parts of files."""
    return "support range requests" in str(error)
