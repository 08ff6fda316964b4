"""The part of a source's URL that selects arrays of a file: ``train.h5::/images,/labels``.

Tested in tests/sharding/sources/arrays/test_npy.py and tests/sharding/sources/arrays/test_hdf5.py.
"""

from __future__ import annotations

import re

import fsspec

_IN_ARCHIVE = re.compile(r"(^|::)(zip|tar|libarchive|rar)://[^:]*$")


def split_selection(url: str) -> tuple[str, tuple[str, ...]]:
    """Split a URL into that of the files, and the names of the selected arrays or groups; no names: all.

    The selection follows the last ``::``, unless that belongs to a chained URL of fsspec.

    >>> split_selection("s3://bucket/train.h5::/images,/labels")
    ('s3://bucket/train.h5', ('images', 'labels'))
    >>> split_selection("simplecache::s3://bucket/train.h5")
    ('simplecache::s3://bucket/train.h5', ())
    >>> split_selection("zip://train.npy::/data/all.zip")
    ('zip://train.npy::/data/all.zip', ())
    """
    files, mark, names = url.rpartition("::")
    if not mark or "://" in names or _IN_ARCHIVE.search(files):
        return url, ()
    if files.rpartition("::")[2] in fsspec.available_protocols():
        return url, ()
    return files, tuple(stripped for name in names.split(",") if (stripped := name.strip().strip("/")))
