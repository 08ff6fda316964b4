"""Parquet shards that were opened before: where their vectors lie is known, and need not be found anew each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ...sharding.formats.parquet_pages import InPlace, Run
from ...sharding.schema import Schema
from .columns import Columns

__all__ = ["PageLocationCache"]

_MOST_RUNS = 1 << 14  # some 16 MiB, where each shard has but one


class PageLocationCache:
    """Where the columns of files lie, of which nothing but vectors in place is wanted. Any thread may ask.

    To read a file's footer and the headers of its pages takes longer than to read its index; where the content is the
    same, so is what they say.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, Schema], dict[str, tuple[list[Run], np.dtype[Any], tuple[int, ...]]]] = {}
        self._runs = 0

    def open(self, checksum: str, data: pa.Buffer, schema: Schema, find: Callable[[], Columns]) -> Columns:
        """The columns of a file.

        Args:
            checksum: of the file, which was checked.
            data: of the file.
            schema: of the features wanted.
            find: finds the columns in the data.
        """
        if (known := self._known.get((checksum, schema))) is not None:
            return {name: InPlace.of_runs(data, *place) for name, place in known.items()}
        columns = find()
        places = {
            name: (values.runs(), values.dtype, values.shape)
            for name, values in columns.items()
            if isinstance(values, InPlace)
        }
        count = sum(len(runs) for runs, _, _ in places.values())
        if len(places) == len(columns) and self._runs + count <= _MOST_RUNS:
            self._known[checksum, schema] = places
            self._runs += count
        return columns
