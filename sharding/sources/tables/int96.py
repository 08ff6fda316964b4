"""Times of Parquet's type INT96, as Spark, Hive and Impala write them: nanoseconds of a day, and its Julian number.

Arrow reads them in nanoseconds of 64 bits, which hold the years 1677 to 2262; beyond, it lets them wrap silently. So
all of them are read once in seconds; if any is out of that range, all are read in microseconds, as long as that loses
nothing.
Tested in tests/sharding/sources/tables/test_parquet.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ringfeed.sharding.errors import RingfeedError, SourceError

Open = Callable[[str, str], AbstractContextManager[pq.ParquetFile]]  # a URL, and the unit to read times in
_MOST_NS, _MOST_US = ((1 << 63) // scale - 1 for scale in (10**9, 10**6))  # seconds from 1970 that 64 bits hold
_REMEDY = (
    "write it in microseconds (in Spark: spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS), or leave it out by "
    "--drop-columns"
)


def int96_columns(parquet: pq.ParquetFile) -> dict[str, list[str]]:
    """Return the columns of a file that hold times of type INT96, each with the paths of these."""
    timed = [field.name for field in parquet.schema_arrow if "timestamp[" in str(field.type)]
    leaves = (parquet.schema.column(i) for i in range(len(parquet.schema) if timed else 0))
    paths = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
    paths_by_name = {name: [path for path in paths if path == name or path.startswith(f"{name}.")] for name in timed}
    return {name: within for name, within in paths_by_name.items() if within}


def int96_unit(urls: Sequence[str], wanted: Callable[[str], bool], opened: Open) -> str:
    """Return the unit to read the times of all files in: ``ns``, or ``us`` if one is beyond that.

    Damaged row groups are left to those who read the files' records.

    Args:
        urls: URLs of files that hold such times.
        wanted: whether a column is wanted.
        opened: opens a file.

    Raises:
        SourceError: neither unit holds all times of the wanted columns.
    """
    far = ""
    for url in urls:
        for name, (seconds,) in _numbers(url, wanted, opened, ("s",)):
            low, high = int(seconds.min(initial=0)), int(seconds.max(initial=0))
            if low < -_MOST_US or high > _MOST_US:
                raise SourceError(
                    f"{url}: column {name!r} holds a time that microseconds in 64 bits cannot hold; the file is "
                    "damaged, or leave the column out by --drop-columns"
                )
            if low < -_MOST_NS or high > _MOST_NS:
                far = far or f"column {name!r} of {url}"
    if not far:
        return "ns"
    for url in urls:
        for name, (nanoseconds, microseconds) in _numbers(url, wanted, opened, ("ns", "us")):
            if (nanoseconds != microseconds * 1000).any():  # both wrapped at 64 bits, so that the digits remain
                raise SourceError(
                    f"{url}: column {name!r} holds times with nanoseconds, and {far} one outside of the years 1677 to "
                    f"2262; no unit holds both in 64 bits: {_REMEDY}"
                )
    return "us"


def _numbers(
    url: str, wanted: Callable[[str], bool], opened: Open, units: Sequence[str]
) -> Iterator[tuple[str, list[npt.NDArray[np.int64]]]]:
    """Yield the column and the numbers of the present times, batch by batch, in each unit."""
    with ExitStack() as stack:
        files = [stack.enter_context(opened(url, unit)) for unit in units]
        paths = [path for name, within in int96_columns(files[0]).items() if wanted(name) for path in within]
        for group in range(files[0].metadata.num_row_groups if paths else 0):
            with _damage_passed():
                readers = (file.iter_batches(row_groups=[group], columns=paths) for file in files)
                for batches in zip(*readers, strict=True):
                    for number, name in enumerate(batches[0].schema.names):
                        for times in zip(*(_times(batch.column(number)) for batch in batches), strict=True):
                            yield name, [time.drop_null().cast(pa.int64()).to_numpy() for time in times]


@contextmanager
def _damage_passed() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, RingfeedError) or (isinstance(error, OSError) and error.errno is not None):
            raise  # the store failed, not the file


def _times(column: pa.Array) -> Iterator[pa.TimestampArray]:
    if pa.types.is_timestamp(column.type):
        yield column
    elif pa.types.is_struct(column.type):
        for field in column.flatten():
            yield from _times(field)
    elif pa.types.is_map(column.type):
        yield from _times(column.keys)
        yield from _times(column.items)
    elif pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        yield from _times(column.flatten())
