"""Arrow IPC files and streams; `test_table_files.py` tests what all tables share."""

from pathlib import Path

import pyarrow as pa
import pytest

from ringfeed.sharding import SourceError
from ringfeed.sharding.prepare import PrepareOptions, Select
from ringfeed.sharding.prepare.open import open_prepared
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.base import ReadSizes
from tests.helpers.contents import completed, labels
from tests.helpers.ipc_files import write_ipc_file, write_ipc_stream


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_part_is_a_run_of_record_batches(tmp_path: Path, table: pa.Table, compression: str | None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(tmp_path / "x.feather", table.schema, options=options) as writer:
        for start, stop in [(0, 50), (50, 250), (250, 300), (300, 600)]:
            writer.write_batch(table.slice(start, stop - start).combine_chunks().to_batches()[0])
    sizes = ReadSizes(part_bytes=(tmp_path / "x.feather").stat().st_size // 2 - 4)
    source = open_source(str(tmp_path), "label", sizes=sizes)
    assert [(part.pieces, part.first_record) for part in source.parts] == [
        ((((0, 2), 250),), 0),
        ((((2, 4), 350),), 250),
    ]
    assert completed(source) == table.to_pylist()
    assert labels(source) == table.column("label").to_pylist()
    assert [
        len(label) for part in source.parts for label in open_source(str(tmp_path), None, sizes=sizes).labels(part)
    ] == [
        250,
        350,
    ]


def test_files_and_streams_may_have_the_same_ending(tmp_path: Path, table: pa.Table) -> None:
    write_ipc_file(table, tmp_path / "a.arrow")
    write_ipc_stream(table, tmp_path / "b.arrow")
    assert completed(open_source(str(tmp_path), None)) == 2 * table.to_pylist()


def test_dictionaries_become_their_values(tmp_path: Path) -> None:
    text = pa.array(["b", None, "a", "b"]).dictionary_encode()
    write_ipc_file(pa.table({"text": text, "label": text.fill_null("a")}), tmp_path / "x.ipc")
    source = open_source(str(tmp_path), "label")
    assert [row["text"] for row in completed(source)] == ["b", None, "a", "b"]
    assert labels(source) == ["b", "a", "a", "b"]


def test_a_stream_cut_between_two_batches_is_damaged(tmp_path: Path, table: pa.Table) -> None:
    write_ipc_stream(table, tmp_path / "x.arrows")
    data = (tmp_path / "x.arrows").read_bytes()
    (tmp_path / "x.arrows").write_bytes(data[:-8])
    with pytest.raises(SourceError, match=r"x\.arrows: the Arrow stream has no end mark"):
        open_source(str(tmp_path), None)


def test_feather_version_1_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(SourceError, match="Feather version 1"):
        open_source(str(tmp_path), None)


def test_records_without_columns_are_refused(tmp_path: Path) -> None:
    write_ipc_file(pa.table({"x": [1, 2]}).select([]), tmp_path / "x.arrow")
    with pytest.raises(SourceError, match=r"x\.arrow holds records without columns"):
        open_source(str(tmp_path / "x.arrow"), None)


@pytest.mark.parametrize("name", ["\0place", "x\0url"])
def test_names_with_zero_bytes_are_refused(tmp_path: Path, name: str) -> None:
    write_ipc_file(pa.table({"x": [1, 2], name: ["a", None]}), tmp_path / "x.arrow")
    with pytest.raises(SourceError, match=r"x\.arrow: the column name '.*' holds a zero byte, .*; rename it"):
        open_source(str(tmp_path / "x.arrow"), None)
    assert open_prepared(str(tmp_path), "x", "auto", PrepareOptions(steps=(Select(("x",)),))).schema.names == ("x",)
