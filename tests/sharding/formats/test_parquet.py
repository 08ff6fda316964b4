"""Parquet files: encodings chosen by the first rows, and damaged footers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding.formats.parquet import read_parquet, scan_row_groups, write_parquet

RNG = np.random.default_rng(0)
ROWS = 10_000
COLUMNS = {
    "random floats": pa.array(RNG.normal(size=ROWS)),
    "numbers": pa.array(np.arange(ROWS)),
    "long texts": pa.array(["x" * 300] * ROWS),
    "random vectors": pa.FixedSizeListArray.from_arrays(pa.array(RNG.normal(size=2 * ROWS)), 2),
    "few floats": pa.array(RNG.integers(0, 9, ROWS) / 10),
    "few texts": pa.array(RNG.choice(["a", "b", None], ROWS)),
    "few vectors": pa.FixedSizeListArray.from_arrays(pa.array(RNG.integers(0, 9, 2 * ROWS) / 10), 2),
    "few in lists": pa.array([[1, 2, 3][: i % 4] for i in range(ROWS)]),
    "all missing": pa.nulls(ROWS, pa.int64()),
    "random bytes": pa.array([RNG.bytes(40) for _ in range(ROWS)]),
    "random bytes behind equal ones": pa.array([b"x" * 400] * 4_000 + [RNG.bytes(400) for _ in range(ROWS - 4_000)]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_dictionary_is_written_where_values_recur(name: str) -> None:
    batch = pa.record_batch({name: COLUMNS[name]})
    data = write_parquet(batch, "none", ROWS)
    leaf: Any = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    assert leaf.has_dictionary_page == name.startswith(("few", "all"))
    assert read_parquet(data).column(0).combine_chunks().equals(batch.column(0))


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_do_not_shrink_are_not_compressed(name: str) -> None:
    batch = pa.record_batch({name: COLUMNS[name]})
    data = write_parquet(batch, "snappy", ROWS)
    leaf: Any = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    plain = name in ("random floats", "random vectors", "random bytes")
    assert leaf.compression == ("UNCOMPRESSED" if plain else "SNAPPY")
    assert read_parquet(data).column(0).combine_chunks().equals(batch.column(0))


def test_a_footer_that_would_abort_pyarrow_is_reported_as_damaged() -> None:
    columns = {"x": np.arange(50), "y": np.arange(50) / 3}
    whole = write_parquet(pa.record_batch(columns), "none", 25)
    data = bytearray(whole.to_pybytes())
    data[-715] ^= 1  # found by trying all bits
    assert len(list(scan_row_groups(whole))) == 2
    with pytest.raises(ValueError, match="the footer is damaged: the metadata of its columns cannot be read"):
        list(scan_row_groups(pa.py_buffer(bytes(data))))


def trial_process() -> psutil.Process:
    """The process that tries footers for this one."""
    whole = write_parquet(pa.record_batch({"x": np.arange(50)}), "none", 25)
    assert len(list(scan_row_groups(whole))) == 2
    (one,) = [each for each in psutil.Process().children() if "read_metadata" in str(each.cmdline())]
    return one


def test_footers_are_tried_in_one_process_and_its_end_is_no_damage() -> None:
    first = trial_process()
    assert trial_process() == first
    first.kill()
    assert trial_process() != first


def test_a_fork_tries_footers_in_a_process_of_its_own() -> None:
    program = """if True:
        import os, psutil
        from tests.sharding.formats.test_parquet import trial_process
        trial_process()
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
        else:
            assert trial_process() not in psutil.Process(os.getppid()).children()
    """
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], check=True, timeout=240)


def test_a_file_without_rows_can_be_written() -> None:
    batch = pa.record_batch({name: column.slice(0, 0) for name, column in COLUMNS.items()})
    assert read_parquet(write_parquet(batch, "snappy", 1)).num_rows == 0
