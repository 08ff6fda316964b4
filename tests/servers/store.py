"""The place a storage test works in, the same to look at on local disk, S3 and HDFS."""

from dataclasses import dataclass, field
from typing import Any

import fsspec

RAW_OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"auto_mkdir": True},
    "s3": {"use_listings_cache": False},
    "hdfs": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """An empty directory (a prefix, on S3) at ``url``.

    In this process ``url`` opens with no options, and in a child process with ``env``; elsewhere with
    ``storage_options``. The methods go through fsspec alone, past the code under test, in file system instances that it
    does not share: they see what is stored, and may damage it.
    """

    name: str
    url: str
    env: dict[str, str] = field(default_factory=dict)
    storage_options: dict[str, str] = field(default_factory=dict)

    def read_bytes(self, rel: str) -> bytes:
        """Return the whole content of the file at the relative path ``rel``."""
        fs, root = self._open()
        return bytes(fs.cat_file(f"{root}/{rel}"))

    def write_bytes(self, rel: str, data: bytes) -> None:
        """Write or overwrite a file."""
        fs, root = self._open()
        fs.pipe_file(f"{root}/{rel}", data)

    def list(self) -> list[str]:
        """Return the relative paths of all files, at any depth, sorted.

        SeaweedFS keeps the directories of deleted objects, and s3fs finds such a one in itself.
        """
        fs, root = self._open()
        found = fs.find(root, detail=True).values()
        return sorted(info["name"].removeprefix(f"{root}/") for info in found if info["type"] == "file")

    def delete(self, rel: str) -> None:
        """Delete a file."""
        fs, root = self._open()
        fs.rm_file(f"{root}/{rel}")

    def _open(self) -> tuple[fsspec.AbstractFileSystem, str]:
        """Return a file system without caches, and the root as that file system writes it."""
        options = {**self.storage_options, **RAW_OPTIONS[self.name]}
        fs, root = fsspec.core.url_to_fs(self.url, **options)
        return fs, root
