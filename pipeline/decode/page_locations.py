"""Remembers where vectors lie in Parquet shards, so that later epochs need not look for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.formats.parquet_pages import FileVectors, Run
from ringfeed.sharding.schema import Schema

from .columns import Columns

_MOST_RUNS = 1 << 14  # about 16 MiB, with one run per shard


class PageLocationCache:
    """Where columns lie in files that are read by `FileVectors` alone. Thread-safe.

    Reading a file's footer and page headers takes longer than reading its index. Files of equal content have equal
    ones, so they are remembered by checksum.

    Args:
        most_runs: most runs of pages that are remembered.
    """

    def __init__(self, most_runs: int = _MOST_RUNS) -> None:
        self._most_runs = most_runs
        self._known: dict[tuple[str, Schema], dict[str, tuple[list[Run], np.dtype[Any], tuple[int, ...]]]] = {}
        self._runs = 0

    def open(self, checksum: str, data: pa.Buffer, schema: Schema, find: Callable[[], Columns]) -> Columns:
        """The columns of a file.

        Args:
            checksum: the file's verified checksum.
            data: content of the file.
            schema: the features to read.
            find: reads the columns from the data where their locations are not known yet.
        """
        if (known := self._known.get((checksum, schema))) is not None:
            return {name: FileVectors.of_runs(data, *place) for name, place in known.items()}
        columns = find()
        places = {
            name: (values.runs(), values.dtype, values.shape)
            for name, values in columns.items()
            if isinstance(values, FileVectors)
        }
        count = sum(len(runs) for runs, _, _ in places.values())
        if len(places) == len(columns) and self._runs + count <= self._most_runs:
            self._known[checksum, schema] = places
            self._runs += count
        return columns
