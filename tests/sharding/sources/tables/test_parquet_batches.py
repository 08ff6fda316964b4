"""Batches of Parquet files are bounded by what their rows take once they are decoded, not by the bytes of a file."""

import io
from itertools import chain
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile

from ringfeed.sharding.compute.batches import BATCH_BYTES
from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.files import inflation
from ringfeed.sharding.sources.tables import parquet_batches

LONG = 1 << 24  # bytes of a text that repeats
MOST = 20 * BATCH_BYTES


def repeated(rows: int, length: int = LONG, short: int = 0) -> pa.Array:
    """Short texts, then long ones, of which a file holds one."""
    indices = np.repeat(np.arange(2, dtype=np.int32), [short, rows])
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(["é", "x" * length]))


def nested(texts: pa.Array, elements: int) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(0, len(texts) + 1, elements), pa.int32()), texts)


def struct(texts: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([texts, pa.array(range(len(texts)))], ["t", "n"])


NESTS = {
    "text": lambda texts: texts,
    "binary": lambda texts: texts.cast(pa.dictionary(pa.int32(), pa.binary())),
    "struct": struct,
    "list": lambda texts: nested(texts, 4),
    "list of structs": lambda texts: nested(struct(texts), 2),
}


def write(path: Path, column: pa.Array, **options: object) -> None:
    pq.write_table(pa.table({"x": column, "i": range(len(column))}), path, store_schema=False, **options)


def allocated_by(path: str) -> tuple[int, int, int]:
    """The most bytes that Arrow held while all batches were read, the rows, and the bytes of all batches."""
    source = open_source(path, None)
    before, most, rows, total = pa.total_allocated_bytes(), 0, 0, 0
    for batch in chain.from_iterable(map(source.drafts, source.parts)):
        most = max(most, pa.total_allocated_bytes() - before)
        rows += batch.num_rows
        total += sum(column.nbytes for column in batch.columns)
    return most, rows, total


@pytest.mark.parametrize("nest", NESTS)
def test_a_long_text_that_repeats_takes_bounded_memory(tmp_path: Path, nest: str) -> None:
    """Without bounds the first batch takes 2 GiB."""
    column = NESTS[nest](repeated(120, short=40))
    write(tmp_path / "x.parquet", column)
    most, rows, total = allocated_by(str(tmp_path / "x.parquet"))
    assert (rows, most < MOST < 120 * LONG < total) == (len(column), True)
    source = open_source(str(tmp_path / "x.parquet"), None)
    assert 1 <= source.sample(source.parts[0], 1000).num_rows <= rows


def test_a_dictionary_before_plain_pages_is_bounded_too(tmp_path: Path) -> None:
    """A writer leaves off its dictionary when that is large."""
    texts = pa.chunked_array([pa.array([*["x" * (1 << 21)] * 300]), pa.array([f"{i:0600000}" for i in range(3)])])
    write(tmp_path / "x.parquet", texts, write_statistics=False, compression="none")
    leaf = pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0).column(0)
    assert {"PLAIN", "RLE_DICTIONARY"} < set(leaf.encodings)
    assert leaf.total_uncompressed_size < 4 << 20
    most, rows, total = allocated_by(str(tmp_path / "x.parquet"))
    assert (rows, most < MOST < 600 << 20 < total) == (303, True)


@pytest.mark.usefixtures("_exact_memory")
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_lists_that_repeat_a_value_are_read_in_smaller_batches_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rows: int
) -> None:
    """A few bytes take 100 MiB and more in memory: too much in one record, but not in eight."""
    elements = 1 << 24 if kind == "numbers" else 1 << 11
    numbers = pa.array(np.zeros(elements, np.int8))
    values = numbers if kind == "numbers" else repeated(elements, 1 << 16)
    write(tmp_path / "x.parquet", nested(values, elements // rows))
    monkeypatch.setattr(inflation, "_HELD_BYTES", 60 << 20)
    monkeypatch.setattr(inflation, "_HELD_INFLATION", 1)
    if rows > 1:
        assert allocated_by(str(tmp_path / "x.parquet"))[1] == rows
        return
    with pytest.raises(SourceError, match=r"x.parquet: a row group of [\d,]+ bytes takes more than [\d,]+ to read"):
        allocated_by(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize("columns", [["x"], ["x", "t", "i"]])
def test_a_store_sends_each_range_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: list[str]) -> None:
    """The dictionaries that are read first, and then the pages, come from the same requests."""
    words = pa.array([f"{'word' * 100}{i % 50}" for i in range(20_000)])
    table = pa.table({"x": words, "t": [f"{i * 7919:0100}" for i in range(20_000)], "i": range(20_000)})
    data = io.BytesIO()
    pq.write_table(table, data, row_group_size=5000)
    fsspec.filesystem("memory").pipe("/batches/x.parquet", data.getvalue())
    monkeypatch.setattr(parquet_batches, "_MOST_BYTES", 1 << 22)
    probed, sent = [], []
    longest, read = parquet_batches._longest_row, MemoryFile.read
    monkeypatch.setattr(parquet_batches, "_longest_row", lambda *given: probed.append(given[1]) or longest(*given))
    source = open_source("memory://batches/x.parquet", None).narrow(columns)
    monkeypatch.setattr(MemoryFile, "read", lambda file, size=-1: sent.append((file.tell(), size)) or read(file, size))
    found = pa.Table.from_batches(chain.from_iterable(map(source.drafts, source.parts)))
    assert found.to_pydict() == table.select(columns).to_pydict()
    assert probed == [0, 1, 2, 3]
    assert sum(size for _, size in sent) < 1.5 * len(data.getvalue())
    assert len(sent) <= 8
