"""The records that `ringfeed predict` scores: those of a file, of a dataset's split, or JSON on standard input.

Tested in tests/training/serving/test_score.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.sources.records.in_memory import write_records
from ringfeed.sharding.sources.ringfeed import find_dataset, open_named_dataset, resolve_split
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.temporary_folder import temporary_folder

STDIN = "-"


@contextmanager
def records_at(url: str, split: str | None) -> Iterator[tuple[Any, bool]]:
    """Yield what `sources.open_source` opens at a path, URL or `STDIN`, and whether it is a dataset's split.

    A ConfigError says that a split is missing, or is given for what has none; a SourceError that standard input holds
    no JSON objects.
    """
    found = None if url == STDIN else find_dataset(url)
    if found is not None:
        folder, named = found
        dataset, _ = open_named_dataset(folder)
        own = resolve_split(folder, dataset, named if split is None else split)
        yield f"{folder}#{own}", True
        return
    if split is not None:
        raise ConfigError(f"--split: {url} is no dataset, so it has no splits; leave it out")
    if url != STDIN:
        yield url, False
        return
    rows = list(_json_rows(sys.stdin.buffer))
    with temporary_folder() as temporary:
        yield write_records(rows, Storage(str(temporary))), False


def _json_rows(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SourceError(f"standard input: line {number}: {brief(error)}; give one JSON object a line") from error
        if not isinstance(row, dict):
            raise SourceError(f"standard input: line {number}: it is no JSON object; give one a line, by column")
        yield row
