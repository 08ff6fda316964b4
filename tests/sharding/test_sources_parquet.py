"""Parquet sources."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import SourceError
from ringfeed.sharding.sources import Source, open_source
from ringfeed.sharding.sources import parquet as module


def records(source: Source) -> list[dict[str, object]]:
    return [row for part in source.parts for batch in source.drafts(part) for row in source.complete(batch).to_pylist()]


def test_all_records_come_in_order_whatever_the_row_groups(
    parquet: str, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART_ROWS", 250)
    source = open_source(parquet, "label")
    assert records(source) == table.to_pylist()
    assert [(part.pieces, part.first_record) for part in source.parts] == [((0, 1, 2), 0), ((3, 4, 5), 300)]
    labels = [value for part in source.parts for batch in source.labels(part) for value in batch.to_pylist()]
    assert labels == table.column("label").to_pylist()


def test_without_a_label_the_records_are_counted_from_the_footer(parquet: str) -> None:
    source = open_source(parquet, None)
    assert sum(len(batch) for part in source.parts for batch in source.labels(part)) == 600


def test_a_sample_is_the_head_of_a_part(parquet: str, table: pa.Table) -> None:
    source = open_source(parquet, "label")
    assert source.sample(source.parts[0], 7).to_pylist() == table.slice(0, 7).to_pylist()


def test_a_folder_is_read_in_the_order_of_its_names_past_hidden_files(tmp_path: Path) -> None:
    for name, value in [("b.parquet", 2), ("a.pq", 1), ("sub/c.parquet", 3), ("_tmp/x.parquet", 9), (".y.parquet", 9)]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"x": [value]}), tmp_path / name)
    assert [row["x"] for row in records(open_source(str(tmp_path), None))] == [1, 2, 3]
    assert [row["x"] for row in records(open_source(f"{tmp_path}/*.p*q*", None))] == [1, 2]


def test_files_of_different_schemas_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": ["1"]}), tmp_path / "b.parquet")
    with pytest.raises(SourceError, match=r"b\.parquet: its schema differs from that of .*a\.parquet"):
        open_source(str(tmp_path), None)


@pytest.mark.parametrize("damage", ["empty", "text", "cut"])
def test_a_damaged_file_is_named(tmp_path: Path, parquet: str, damage: str) -> None:
    data = {"empty": b"", "text": b"hello, I am no Parquet", "cut": Path(parquet).read_bytes()[:-10]}[damage]
    Path(parquet).write_bytes(data)
    with pytest.raises(SourceError, match=r"source\.parquet: .*the file is damaged or no Parquet"):
        open_source(parquet, "label")


def test_damaged_pages_are_found_when_they_are_read(parquet: str) -> None:
    data = bytearray(Path(parquet).read_bytes())
    data[4:2000] = bytes(1996)
    Path(parquet).write_bytes(data)
    with pytest.raises(SourceError, match="the file is damaged"):
        records(open_source(parquet, "label"))


def test_a_near_miss_of_a_path_is_pointed_out(parquet: str) -> None:
    with pytest.raises(SourceError, match=r"nothing at .*sorce\.parquet; did you mean .*source\.parquet"):
        open_source(parquet.replace("source", "sorce"), "label")


def test_the_fingerprint_follows_the_files(parquet: str, table: pa.Table) -> None:
    before = open_source(parquet, "label").fingerprint
    assert open_source(parquet, "label").fingerprint == before
    pq.write_table(table.slice(1), parquet)
    assert open_source(parquet, "label").fingerprint != before
