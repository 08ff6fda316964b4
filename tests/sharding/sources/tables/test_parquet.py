"""Parquet files; `test_table_files.py` tests what all tables share."""

import json
import zipfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from ringfeed.sharding import SourceError
from ringfeed.sharding.compute.batches import BATCH_BYTES
from ringfeed.sharding.formats.parquet import batch_rows_within
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.base import ReadSizes
from tests.helpers.contents import completed


def test_all_records_are_read_in_order_whatever_the_row_groups(parquet: str, table: pa.Table) -> None:
    source = open_source(parquet, "label", sizes=ReadSizes(part_rows=250))
    assert completed(source) == table.to_pylist()
    groups = [(number, 100) for number in range(6)]
    assert [([*part.pieces], part.first_record) for part in source.parts] == [(groups[:3], 0), (groups[3:], 300)]
    labels = [value for part in source.parts for batch in source.labels(part) for value in batch.to_pylist()]
    assert labels == table.column("label").to_pylist()


def test_without_a_label_the_records_are_counted_from_the_footer(parquet: str) -> None:
    source = open_source(parquet, None)
    assert sum(len(batch) for part in source.parts for batch in source.labels(part)) == 600


def test_a_sample_is_the_head_of_a_part(parquet: str, table: pa.Table) -> None:
    source = open_source(parquet, "label")
    assert source.sample(source.parts[0], 7).to_pylist() == table.slice(0, 7).to_pylist()


def test_a_folder_is_read_in_order_of_names_without_hidden_files(tmp_path: Path) -> None:
    for name, value in [("b.parquet", 2), ("a.pq", 1), ("sub/c.parquet", 3), ("_tmp/x.parquet", 9), (".y.parquet", 9)]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"x": [value]}), tmp_path / name)
    assert [row["x"] for row in completed(open_source(str(tmp_path), None))] == [1, 2, 3]
    assert [row["x"] for row in completed(open_source(f"{tmp_path}/*.p*q*", None))] == [1, 2]


def test_folders_in_an_archive_make_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for k in (1, 2):
            archive.write(tmp_path / "a.parquet", f"in/k={k}/a.parquet")
    source = open_source(f"zip://in::{tmp_path}/a.zip", None)
    assert completed(source) == [{"x": 1, "k": 1}, {"x": 1, "k": 2}]


def test_columns_of_nulls_are_read_as_the_declared_type(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.nulls(2), "z": pa.nulls(2)}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"x": [3], "z": pa.nulls(1)}), tmp_path / "2.parquet")
    features = {"x": Feature(name="x", dtype="int8"), "z": Feature(name="z", dtype="string", shape=(3,))}
    expected = [{"x": None, "z": None}, {"x": None, "z": None}, {"x": 3, "z": None}]
    assert completed(open_source(str(tmp_path), "x", features=features)) == expected


@pytest.mark.parametrize("damage", ["empty", "text", "cut"])
def test_a_damaged_file_is_named(tmp_path: Path, parquet: str, damage: str) -> None:
    data = {"empty": b"", "text": b"hello, I am no Parquet", "cut": Path(parquet).read_bytes()[:-10]}[damage]
    Path(parquet).write_bytes(data)
    with pytest.raises(SourceError, match=r"source\.parquet: .*the file is damaged or not Parquet"):
        open_source(parquet, "label")


def test_damaged_pages_are_found_when_they_are_read(parquet: str) -> None:
    data = bytearray(Path(parquet).read_bytes())
    data[4:2000] = bytes(1996)
    Path(parquet).write_bytes(data)
    with pytest.raises(SourceError, match="the file is damaged"):
        completed(open_source(parquet, "label"))


def test_a_similar_path_is_suggested(parquet: str) -> None:
    with pytest.raises(SourceError, match=r"nothing at .*sorce\.parquet; did you mean .*source\.parquet"):
        open_source(parquet.replace("source", "sorce"), "label")


def test_the_fingerprint_depends_on_the_files(parquet: str, table: pa.Table) -> None:
    before = open_source(parquet, "label").fingerprint
    assert open_source(parquet, "label").fingerprint == before
    pq.write_table(table.slice(1), parquet)
    assert open_source(parquet, "label").fingerprint != before


def test_parts_end_at_row_groups_by_rows_or_bytes(tmp_path: Path, table: pa.Table) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, row_group_size=100)
    group_bytes = pq.ParquetFile(path).metadata.row_group(0).total_byte_size
    source = open_source(str(path), "label", sizes=ReadSizes(part_bytes=group_bytes * 3 // 2))
    assert [[group for group, _ in part.pieces] for part in source.parts] == [[0, 1], [2, 3], [4, 5]]
    assert [part.first_record for part in source.parts] == [0, 200, 400]


@pytest.mark.parametrize(
    ("column", "row_bytes"),
    [
        (pa.array([5] * 1000, pa.int64()), 8),  # of which the file holds one
        (pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 16000, pa.float32()), 16), 64),
        (pa.array([f"{i:0100}" for i in range(1000)]), 104),
    ],
)
def test_rows_of_a_batch_follow_from_the_metadata(tmp_path: Path, column: pa.Array, row_bytes: int) -> None:
    pq.write_table(pa.table({"a.b": column}), tmp_path / "x.parquet", use_dictionary=row_bytes == 8)
    file = pq.ParquetFile(tmp_path / "x.parquet")
    assert batch_rows_within(file, [0], ["a.b"], 1 << 16, row_bytes * 100) == pytest.approx(100, rel=0.1)
    assert batch_rows_within(file, [0], ["a.b"], 7, row_bytes * 100) == 7
    assert batch_rows_within(file, [0], ["a.b"], 7, 1) == 1


def test_memory_does_not_grow_with_a_row_group(tmp_path: Path) -> None:
    rows = 400_000
    values = pa.array(np.tile(np.arange(100, dtype=np.float32), rows))
    pq.write_table(
        pa.table({"x": pa.FixedSizeListArray.from_arrays(values, 100)}), tmp_path / "x.parquet", row_group_size=rows
    )
    source = open_source(str(tmp_path), None)
    before, most, found = pa.total_allocated_bytes(), 0, 0
    for batch in source.drafts(source.parts[0]):
        most = max(most, pa.total_allocated_bytes() - before)
        found += batch.num_rows
    assert (len(source.parts), found) == (1, rows)
    assert most < 4 * BATCH_BYTES < values.nbytes / 2


def test_a_page_that_fails_its_checksum_is_damage(tmp_path: Path) -> None:
    """Without compression nothing else tells."""
    path = tmp_path / "x.parquet"
    table = pa.table({"id": range(400), "x": [f"t{i * 7919}" for i in range(400)]})
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=40, **options)
    assert completed(open_source(str(path), None)) == table.to_pylist()
    data = bytearray(path.read_bytes())
    data[data.find(b"t1029470") + 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"x\.parquet: could not verify page integrity, CRC checksum"):
        completed(open_source(str(path), None))


def test_a_field_of_a_struct_is_read_without_the_others(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    texts = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())
    structs = pa.StructArray.from_arrays([texts, pa.array([1, 2])], names=["t", "i"])
    pq.write_table(pa.table({"s": structs}), path)
    assert completed(open_source(str(path), None).narrow(["s.i"])) == [{"s.i": 1}, {"s.i": 2}]
    with pytest.raises(SourceError, match="Invalid UTF8"):
        completed(open_source(str(path), None))


def test_dictionaries_in_structs_are_read_across_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    values = [f"v{i % 5}" for i in range(40)]
    inner = pa.StructArray.from_arrays([pa.array(values).dictionary_encode()], names=["d"])
    outer = pa.StructArray.from_arrays([inner], names=["e"])
    pq.write_table(pa.table({"s": inner, "t": outer}), path, row_group_size=13)
    assert completed(open_source(str(path), None)) == [{"s.d": value, "t.e.d": value} for value in values]


def test_missing_images_of_hugging_face_are_reported(tmp_path: Path) -> None:
    features = {"info": {"features": {"img": {"_type": "Image"}, "tags": [{"_type": "Value"}]}}}
    for name, first in (("none", {"bytes": None, "path": None}), ("there", {"bytes": b"x", "path": "/data/0.png"})):
        images = pa.array([first, None, {"bytes": b"y", "path": None}])
        table = pa.table({"img": images}).replace_schema_metadata({"huggingface": json.dumps(features)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        assert completed(open_source(str(tmp_path / f"{name}.parquet"), None)) == [
            {"img": image and image["bytes"]} for image in images.to_pylist()
        ]
    elsewhere = pa.array([{"bytes": b"x", "path": None}, {"bytes": None, "path": "/data/1.png"}])
    pq.write_table(table.slice(0, 2).set_column(0, table.schema.field(0), elsewhere), tmp_path / "e.parquet")
    with pytest.raises(
        SourceError, match=r"e\.parquet: column 'img' holds only the path of an image \('/data/1\.png'\)"
    ):
        completed(open_source(str(tmp_path / "e.parquet"), None))


def write_int96(path: Path, times: Any, **columns: Any) -> None:
    table = pa.table({"id": range(len(times)), "x": times, **columns})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=2)


def decoded_int96(path: Path) -> list[int]:
    """The microseconds since 1970 of a plain column, decoded by hand: nanoseconds of the day, and its Julian number."""
    leaf = pq.ParquetFile(path).metadata.row_group(0).column(1)
    page = path.read_bytes()[leaf.data_page_offset :][: leaf.total_compressed_size]
    values = np.frombuffer(page[-12 * leaf.num_values :], [("nanoseconds", "<u8"), ("day", "<u4")])
    return [(int(day) - 2_440_588) * 86_400_000_000 + int(ns) // 1000 for ns, day in values.tolist()]


NESTS: dict[str, Any] = {
    "scalar": lambda times: times,
    "struct": lambda times: pa.StructArray.from_arrays([times], ["t"]),
    "list": lambda times: pa.array([[time] for time in times.to_pylist()], pa.list_(times.type)),
    "map": lambda times: pa.array([[("k", time)] for time in times.to_pylist()], pa.map_(pa.string(), times.type)),
}
SMALL, LARGE = "0001-01-01T00:00:00.000001", "9999-12-31T23:59:59.999999"


@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("day", [SMALL, "1677-01-01", "2263-01-01", LARGE])
def test_int96_times_beyond_nanoseconds_are_read_in_microseconds(tmp_path: Path, nest: str, day: str) -> None:
    path = tmp_path / "x.parquet"
    for days, unit in ((["1678-01-01", "2262-01-01"], "ns"), (["2000-01-01", "1999-09-09", day], "us")):
        write_int96(path, NESTS[nest](pa.array(np.array(days, "M8[us]"))))
        source = open_source(str(path), None)
        assert source.schema.features[-1].logical == f"timestamp[{unit}]"
        found = [list(row.values())[-1] for row in completed(source)]
        assert np.array(found).reshape(-1).tolist() == np.array(days, f"M8[{unit}]").view(int).tolist()
        assert completed(source.narrow(["id"])) == [{"id": number} for number in range(len(days))]


def test_int96_times_equal_those_decoded_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    times = pa.array(np.array([SMALL, LARGE, "1969-12-31T23:59:59.999999", "1582-10-04", "2038-01-19"], "M8[us]"))
    table = pa.table({"id": range(5), "x": times})
    pq.write_table(
        table, path, use_deprecated_int96_timestamps=True, use_dictionary=False, compression="none",
        write_statistics=False,
    )  # fmt: skip
    expected = decoded_int96(path)
    assert expected == times.cast(pa.int64()).to_pylist()
    assert [row["x"] for row in completed(open_source(str(path), None))] == expected


def test_int96_times_of_all_files_and_columns_have_one_unit(tmp_path: Path) -> None:
    far, near = pa.array(np.array([LARGE, None], "M8[us]")), pa.array(np.array(["2000-01-01"] * 2, "M8[us]"))
    write_int96(tmp_path / "0.parquet", near, z=near)
    write_int96(tmp_path / "1.parquet", near, z=far)
    pq.write_table(pa.table({"id": [7], "x": near[:1], "z": far[:1]}), tmp_path / "2.parquet")  # INT64
    source = open_source(str(tmp_path), None)
    assert [feature.logical for feature in source.schema.features[1:]] == ["timestamp[us]"] * 2
    last = int(np.datetime64(LARGE, "us").view(int))
    assert [row["z"] for row in completed(source)][2:] == [last, None, last]
    write_int96(tmp_path / "0.parquet", pa.array(np.array(["2000-01-01T00:00:00.000000001", None], "M8[ns]")), z=near)
    with pytest.raises(
        SourceError, match=r"0\.parquet: column 'x' holds times with nanoseconds, and column 'z' of .*1"
    ):
        open_source(str(tmp_path), None)
    assert open_source(str(tmp_path), None, wanted=lambda name: name != "z").schema["x"].logical == "timestamp[ns]"
    assert open_source(str(tmp_path), None, wanted=lambda name: name != "x").schema["z"].logical == "timestamp[us]"


def test_int96_times_beyond_microseconds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    times = pa.array(np.array(["2000-01-01"], "M8[us]"))
    write = {"use_deprecated_int96_timestamps": True, "use_dictionary": False, "compression": "none"}
    pq.write_table(pa.table({"x": times}), path, write_statistics=False, **write)
    day = (2_451_545).to_bytes(4, "little")
    assert path.read_bytes().count(day) == 1
    path.write_bytes(path.read_bytes().replace(day, b"\xff" * 4))
    with pytest.raises(SourceError, match="column 'x' holds a time that microseconds in 64 bits cannot hold"):
        open_source(str(path), None)


def test_damaged_row_groups_with_int96_are_skipped_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_int96(path, pa.array(np.array([LARGE, "2000-01-01", SMALL, SMALL], "M8[us]")))
    data, leaf = bytearray(path.read_bytes()), pq.ParquetFile(path).metadata.row_group(1).column(1)
    start = leaf.dictionary_page_offset or leaf.data_page_offset
    data[start : start + leaf.total_compressed_size] = b"\xff" * leaf.total_compressed_size
    path.write_bytes(data)
    source, bad = open_source(str(path), None), []
    rows = [row for part in source.parts for batch in source.drafts(part, bad.append) for row in batch.to_pylist()]
    assert [row["x"] for row in rows] == np.array([LARGE, "2000-01-01"], "M8[us]").view(int).tolist()
    assert [record.place for record in bad] == ["record 2", "record 3"]


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_an_encrypted_file_is_called_that(tmp_path: Path, plaintext_footer: bool) -> None:
    class Keys(encryption.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key: bytes, master: str) -> bytes:
            return b64encode(key)

    config = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["x"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    table = pa.table({"x": [1, 2], "y": [3, 4]})
    path = tmp_path / "x.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(SourceError, match=r"x\.parquet is encrypted \(.*; read it with pyarrow and its keys") as error:
        completed(open_source(str(path), None))
    assert ("--drop-columns" in str(error.value)) == plaintext_footer
    if plaintext_footer:
        assert completed(open_source(str(path), None).narrow(["y"])) == [{"y": 3}, {"y": 4}]
