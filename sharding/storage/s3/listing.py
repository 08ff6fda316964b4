"""Lists a folder of a bucket page by page, each with retries of its own: a folder of 10^5 files has 100 pages.

Tested in tests/sharding/storage/test_busy_stores.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fsspec

_Page = dict[str, Any]

_PAGE_KEYS = 1000  # the most that S3 gives


def list_objects(
    fs: fsspec.AbstractFileSystem, root: str, run: Callable[[Callable[[], _Page]], _Page]
) -> Iterator[tuple[str, int]]:
    """Yield the path and the size in bytes of each object below a folder, which need not exist.

    Only a bucket that does not exist, or a store in trouble, answers 404; to take that for an empty folder would begin
    a build or a run anew.

    Raises:
        FileNotFoundError: there is no such bucket.
    """
    bucket, _, prefix = root.partition("/")
    options = {"Bucket": bucket, "Prefix": f"{prefix}/" if prefix else "", "MaxKeys": _PAGE_KEYS}

    def ask() -> _Page:
        page: _Page = fs.call_s3("list_objects_v2", **options)
        return page

    while True:
        page = run(ask)
        yield from ((f"{bucket}/{entry['Key']}", entry["Size"]) for entry in page.get("Contents", ()))
        if not page.get("IsTruncated"):
            return
        options["ContinuationToken"] = page["NextContinuationToken"]
