"""Where the paths of a list of images lead, and whether the list may name files there.

Tested in tests/sharding/sources/images/test_image_list.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from posixpath import normpath
from urllib.parse import unquote

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.sources.files.find import resolve_relative, split_chain
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.urls import WEB_PROTOCOLS, normalize_url
from ringfeed.sharding.url_secrets import public_url


class ImageLocator:
    """Turns the paths in a list into URLs, and refuses those that lead outside the folders that it may use.

    Links of the local file system are followed before the comparison; so are `..`, also in URLs.

    Args:
        table: URL of the list, in whose folder it may name files.
        images_from: other such folders.

    >>> ImageLocator("s3://bucket/a/list.csv", ()).locate("b/c.jpg")
    's3://bucket/a/b/c.jpg'
    >>> ImageLocator("s3://bucket/a/list.csv", ()).locate("../c.jpg")
    Traceback (most recent call last):
    ringfeed.sharding.errors.SourceError: s3://bucket/a/list.csv names the image '../c.jpg', which is s3://bucket/c.jpg, outside the list's folder; if it may, add --images-from s3://bucket/
    """  # noqa: E501

    def __init__(self, table: str, images_from: Sequence[str]) -> None:
        self._table = table
        self._real: dict[str, str] = {}  # folders without links: asking the system takes 10 us for each name in a path
        folders = (resolve_relative(table, ""), *(normalize_url(folder, "--images-from") for folder in images_from))
        self._allowed = tuple(self._resolved(folder).removesuffix("/") + "/" for folder in folders)

    def locate(self, path: str) -> str:
        """Return the URL of a path; raises a SourceError if it leads outside."""
        is_absolute = path.startswith("/") or "://" in path
        url = normalize_url(path, "a path") if is_absolute else resolve_relative(self._table, path)
        place = self._resolved(url)
        is_local = place.startswith("/")
        if not place.startswith(self._allowed):
            table, shown = public_url(self._table).removeprefix("file://"), public_url(place if is_local else url)
            raise SourceError(
                f"{table} names the image {public_url(path)!r}, which is {shown}, outside the list's "
                f"folder; if it may, add --images-from {resolve_relative(shown, '')}"
            )
        return place if is_local and ".." in path else url  # what follows a link in `a/..` is not always its parent

    def _resolved(self, url: str) -> str:
        """Return a URL in a form in which it starts with that of a folder if the file lies in the folder.

        A path of this machine is absolute and without links. The archive of a member comes before the member.
        """
        if url.startswith(("/", "file:///")):  # the usual case, for speed
            return self._real_path(url.removeprefix("file://"))
        name, archive = split_chain(url)
        if (local := Storage(name).local_path) is not None:
            return self._real_path(str(local))
        protocol, _, place = name.partition("://")
        if protocol in WEB_PROTOCOLS:
            place = unquote(place.partition("?")[0])
        return f"{archive}{protocol}://{normpath(place) if place else ''}"

    def _real_path(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            return _without_links(path)
        if folder not in self._real:
            self._real[folder] = _without_links(folder or "/")
        place = os.path.join(self._real[folder], name)
        return _without_links(place) if os.path.islink(place) else place


def _without_links(path: str) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # a zero byte: there is no such file, as its reader will say
        return os.path.abspath(path)
