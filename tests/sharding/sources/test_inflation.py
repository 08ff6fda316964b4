"""Files that hold far more than their bytes: parts of tables, compressed text, and long values of dictionaries."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, orc

from ringfeed.sharding import SourceError
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.files import inflation
from tests.helpers.contents import labels

OPENERS: dict[str, Callable[[str], Any]] = {
    "gz": lambda path: gzip.GzipFile(path, "wb"),
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
    monkeypatch.setattr(inflation, "_HELD_BYTES", 1 << 20)
    monkeypatch.setattr(inflation, "_HELD_INFLATION", 10)
    with pytest.raises(
        SourceError, match=r"x\.\w+: a (record batch|stripe|chunk) of [\d,]+ bytes claims to hold [23],"
    ):
        open_source(str(path), None)


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
    with pytest.raises(SourceError, match=r"bytes hold [12],\d+,\d+ or more; if it is so, decompress it$"):
        labels(open_source(str(path), "a"))
