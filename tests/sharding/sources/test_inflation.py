"""Files that hold far more than their bytes: parts of tables, compressed text, and long values of dictionaries."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, orc

from ringfeed.sharding import SourceError
from ringfeed.sharding.compute.batches import BATCH_BYTES
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.files import inflation
from tests.helpers.contents import labels

OPENERS: dict[str, Callable[[str], Any]] = {
    "gz": lambda path: gzip.GzipFile(path, "wb"),
    "bz2": lambda path: bz2.BZ2File(path, "wb"),  # the caller closes it
    "xz": lambda path: lzma.LZMAFile(path, "wb"),  # noqa: SIM115  # the caller closes it
    "zst": lambda path: pa.CompressedOutputStream(path, "zstd"),
}
ROWS = 1 << 18


@pytest.mark.parametrize(("ending", "codec"), [("arrow", "zstd"), ("arrows", "lz4"), ("orc", "zstd"), ("h5", "gzip")])
def test_parts_that_inflate_beyond_reason_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, codec: str
) -> None:
    path = tmp_path / f"x.{ending}"
    table = pa.table({"x": pa.array(np.zeros(ROWS, np.int64)), "t": pa.array(["a"] * (ROWS)).dictionary_encode()})
    if ending == "orc":
        orc.write_table(table.select(["x"]), path, compression=codec)
    elif ending == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=np.zeros(ROWS, np.int64), chunks=(ROWS,), compression=codec)
    else:
        make = pa.ipc.new_file if ending == "arrow" else pa.ipc.new_stream
        with (
            pa.OSFile(str(path), "wb") as sink,
            make(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer,
        ):
            writer.write_table(table)
    assert len(labels(open_source(str(path), "x"))) == ROWS
    fsspec.filesystem("memory").pipe(f"/inflation/x.{ending}", path.read_bytes())
    assert len(labels(open_source(f"memory://inflation/x.{ending}", "x"))) == ROWS
    monkeypatch.setattr(inflation, "_HELD_BYTES", 1 << 20)
    monkeypatch.setattr(inflation, "_HELD_INFLATION", 10)
    claims = r"x\.\w+: a (record batch|stripe|chunk) of [\d,]+ bytes claims to hold [23],"
    with pytest.raises(SourceError, match=claims):
        open_source(str(path), None)
    with pytest.raises(SourceError, match=claims):
        labels(open_source(f"memory://inflation/x.{ending}", "x"))


def test_an_orc_stripe_that_repeats_a_long_text_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stripe is the least that Arrow reads, and it writes out all values of a dictionary."""
    path, texts = tmp_path / "x.orc", [f"{i}{'x' * 50_000}" for i in (1, 2)] * 200
    table = pa.table({"x": texts, "b": [text.encode() for text in texts]})
    orc.write_table(table, path, compression="zstd", dictionary_key_size_threshold=1.0)
    assert len(labels(open_source(str(path), "x"))) == 400
    monkeypatch.setattr(inflation, "_HELD_BYTES", 30 << 20)
    with pytest.raises(SourceError, match=r"a stripe of [\d,]+ bytes claims to hold 40,000,\d+; if it does, write"):
        open_source(str(path), None)


@pytest.mark.usefixtures("_exact_memory")
def test_an_orc_stripe_whose_statistics_lie_is_refused_as_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, texts = tmp_path / "x.orc", [f"{i}{'x' * 200_000}" for i in (1, 2)] * 400
    orc.write_table(pa.table({"x": texts}), path, compression="uncompressed", dictionary_key_size_threshold=1.0)
    total = varint(2 * sum(map(len, texts)))
    assert path.read_bytes().count(total) > 0
    path.write_bytes(path.read_bytes().replace(total, b"\x80" * (len(total) - 1) + b"\0"))
    assert len(labels(open_source(str(path), "x"))) == 800
    monkeypatch.setattr(inflation, "_HELD_BYTES", 30 << 20)
    monkeypatch.setattr(inflation, "_HELD_INFLATION", 1)
    with pytest.raises(SourceError, match=r"x\.orc: a stripe of [\d,]+ bytes takes more than [\d,]+ to read; if this"):
        labels(open_source(str(path), "x"))


def varint(number: int) -> bytes:
    head = b""
    while number > 127:
        head, number = head + bytes([number & 127 | 128]), number >> 7
    return head + bytes([number])


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("claim", [2**33, 2**40, 2**62, -2])
def test_claims_of_arrow_buffers_in_stores_are_refused(
    make: Callable[..., Any], compression: str | None, claim: int
) -> None:
    """A number of bytes is written over those that the metadata or the buffers of a batch claim."""
    table = pa.table({"t": pa.array(["a", "b"] * 1200).dictionary_encode(), "x": range(2400)})
    sink = pa.BufferOutputStream()
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    data, true = sink.getvalue().to_pybytes(), (2400 * 8).to_bytes(8, "little")
    files = fsspec.filesystem("memory")
    files.pipe("/claims/x.arrow", data)
    source = open_source("memory://claims/x.arrow", "x")
    assert labels(source) == list(range(2400))
    assert data.count(true) > 0
    files.pipe("/claims/x.arrow", data.replace(true, claim.to_bytes(8, "little", signed=True)))
    with pytest.raises(
        SourceError,
        match=r"x\.arrow: (a record batch of [\d,]+ bytes claims to hold [\d,]+|a buffer claims -2 bytes|"
        r"a buffer of a record batch lies beyond it)",
    ):
        labels(open_source("memory://claims/x.arrow", "x"))


@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("kind", ["text", "list", "runs"])
def test_arrow_values_that_rows_share_are_written_out_in_slices(
    tmp_path: Path, make: Callable[..., Any], kind: str
) -> None:
    """Written out at once, a batch takes 1.5 GiB."""
    rows, long = 1500, "x" * (1 << 20)
    indices = pa.array([0] * 1000 + [1] * 500, pa.int32())
    values = {
        "text": lambda: pa.DictionaryArray.from_arrays(indices, pa.array(["", long])),
        "list": lambda: pa.DictionaryArray.from_arrays(indices, pa.array([[], [long]])),
        "runs": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([1000, rows], pa.int32()), pa.array(["", long])),
    }[kind]()
    table = pa.table({"x": values, "i": range(rows)})
    with make(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    source = open_source(str(tmp_path / "x.arrow"), None)
    before, most, total, found = pa.total_allocated_bytes(), 0, 0, 0
    for batch in source.drafts(source.parts[0]):
        most = max(most, pa.total_allocated_bytes() - before)
        total += batch["x"].nbytes
        found += batch.num_rows
    assert (found, most < 6 * BATCH_BYTES < 500 << 20 < total) == (rows, True)


def test_a_sample_of_a_dictionary_of_long_text_stays_small(tmp_path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0, *[1] * 3000], pa.int32()), pa.array(["", "x" * (1 << 20)]))
    feather.write_feather(pa.table({"x": texts}), tmp_path / "x.arrow")  # 3 GiB without the dictionary
    source = open_source(str(tmp_path / "x.arrow"), None)
    found = source.sample(source.parts[0], 3000)["x"]
    assert 1 < len(found) < 32
    assert found.to_pylist() == ["", *["x" * (1 << 20)] * (len(found) - 1)]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("codec", OPENERS)
def test_compressed_text_that_inflates_beyond_reason_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, kind: str
) -> None:
    path = tmp_path / f"x.{kind}.{codec}"
    line = b"0,0,0,0,0\n" if kind == "csv" else b'{"a": 0}\n'
    with OPENERS[codec](str(path)) as file:
        file.write((b"a,b,c,d,e\n" if kind == "csv" else b"") + line * ROWS)
    assert len(labels(open_source(str(path), "a"))) == ROWS
    monkeypatch.setattr(inflation, "_STREAMED_BYTES", 1 << 20)
    monkeypatch.setattr(inflation, "_STREAMED_INFLATION", 10)
    with pytest.raises(
        SourceError, match=r"bytes hold [12],\d+,\d+ or more in [\d,]+ lines; if it is so, decompress it$"
    ):
        labels(open_source(str(path), "a"))


@pytest.mark.parametrize(("kind", "line"), [("csv", b"0\n"), ("csv", b"\r\n"), ("jsonl", b"{}\n")])
@pytest.mark.parametrize("codec", ["gz", "zst"])
def test_short_lines_without_end_are_refused_soon(tmp_path: Path, codec: str, kind: str, line: bytes) -> None:
    """Lines take the time, not bytes: 256 MiB of two-byte lines took a minute."""
    path, lines = tmp_path / f"x.{kind}.{codec}", 16 << 20
    with OPENERS[codec](str(path)) as file:
        file.write(b"a\n" if kind == "csv" else b'{"a": 0}\n')
        for _ in range(16):
            file.write(line * (lines // 16))
    with pytest.raises(SourceError, match=r"bytes hold [\d,]+ or more in (\d+),\d+,\d+ lines; if it is so") as caught:
        labels(open_source(str(path), "a"))
    assert int(str(caught.value).partition(" or more in ")[2].partition(",")[0]) < 14
