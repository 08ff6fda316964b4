"""`dataset.json`: a damaged, foreign or newer one is refused."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import CorruptionError, DatasetError, Manifest, RingfeedError
from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.dataset.manifest import _dump, _with_checksum
from ringfeed.sharding.dataset.shard_table import decode_shards, encode_shards
from ringfeed.sharding.storage.file_contents import FileInfo
from tests.helpers.manifests import MANIFEST, SHARD

GENERATION = {
    "plan": "p",
    "source": {},
    "seed": 0,
    "options": {},
    "writer": "w",
    "classes": 1,
    "records": {"train": 2},
    "shards": {"train": 1},
}
ENCODED = MANIFEST.encode()


def test_decode_is_the_inverse_of_encode() -> None:
    assert Manifest.decode(ENCODED, "x") == MANIFEST
    assert replace(MANIFEST, classes=(None,), layout=None).encode() != ENCODED
    assert Manifest.decode(replace(MANIFEST, files={}).encode(), "x").files == {}
    for classes in [(False, True), (-1, 2**64 - 1), (None,)]:
        manifest = replace(MANIFEST, classes=classes, layout=None)
        assert Manifest.decode(manifest.encode(), "x") == manifest


@given(position=st.integers(0, len(ENCODED) - 1), flip=st.integers(1, 255))
def test_every_flipped_byte_is_found_and_the_file_named(position: int, flip: int) -> None:
    data = bytearray(ENCODED)
    data[position] ^= flip
    with pytest.raises(RingfeedError, match=r"s3://b/dataset\.json"):
        Manifest.decode(bytes(data), "s3://b/dataset.json")


def test_a_number_damaged_to_infinity_is_found() -> None:
    damaged = ENCODED.replace(b'"seed": 9223372036854775808', b'"seed": 9e23372036854775808')
    assert damaged != ENCODED
    with pytest.raises(CorruptionError, match="checksum does not match"):
        Manifest.decode(damaged, "x/dataset.json")


@given(length=st.integers(0, len(ENCODED) - 1))
def test_every_truncation_is_found(length: int) -> None:
    with pytest.raises(CorruptionError, match="x is damaged"):
        Manifest.decode(ENCODED[:length], "x")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"{}", b'{"format_version": 1}', b"\xff", b'{"format_version": "a"}', 99_999 * b"["]
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="x is damaged, or not a ringfeed dataset"):
        Manifest.decode(data, "x")


def test_a_newer_major_version_is_refused_and_says_so() -> None:
    value = json.loads(ENCODED) | {"format_version": "3.0"}
    with pytest.raises(DatasetError, match=r"x has format version 3\.0, this ringfeed reads 1\.x and 2\.x; upgrade"):
        Manifest.decode(json.dumps(value).encode(), "x")


@pytest.mark.parametrize(
    "change",
    [
        {"features": [{"name": "y", "dtype": "float8"}]},
        {"splits": {"train": {"records": 2}}},
        {"files": {"features.json": {"bytes": 3, "checksum": "g", "kind": "of a version to come"}}},
        {"generations": [{"plan": "p"}]},
        {"shards": {"path": None, "bytes": 7, "checksum": "e"}},
        {"shards": {"path": "_ringfeed/shards.table", "bytes": "7", "checksum": "e"}},
        {"compression": None},
        {"features": [{"name": None, "dtype": "int8", "shape": []}]},
        {"features": [{"name": "y", "dtype": "int8", "shape": ["3"]}]},
        {"splits": {"train": {"records": 1.5, "shards": 1, "class_counts": [1, 1], "statistics": {}}}},
        {"splits": {"train": {"records": True, "shards": 1, "class_counts": [1, 1], "statistics": {}}}},
        {"splits": {"train": {"records": 2, "shards": 1, "class_counts": [1, 1], "statistics": {"y": {"count": {}}}}}},
        {"source": ["a", "b"]},
        {"seed": 1 << 70},
        {"generations": [GENERATION | {"records": {"train": None}}]},
        {"generations": [GENERATION | {"classes": 1 << 40}]},
    ],
)
def test_what_only_another_version_writes_is_refused_and_the_file_named(change: dict[str, object]) -> None:
    value = {key: entry for key, entry in json.loads(ENCODED).items() if key != "checksum"} | change
    body = _dump(value)
    with pytest.raises(DatasetError, match=r"x/dataset\.json is intact, but this version .*; upgrade"):
        Manifest.decode(_with_checksum(body, checksum(body)), "x/dataset.json")


def test_shards_come_back() -> None:
    shards = (SHARD, replace(SHARD, split="ü", class_counts=(0, 2)))
    assert decode_shards(encode_shards(shards)) == shards
    assert encode_shards(shards) == encode_shards(shards)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "", "s3://b/x", "a\\b", "..\\x"])
@pytest.mark.parametrize("field", ["path", "index_path"])
def test_a_path_that_leaves_the_root_is_refused(field: str, path: str) -> None:
    with pytest.raises(DatasetError, match="leaves the dataset's root"):
        replace(SHARD, **{field: path})  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd"])
def test_a_file_for_another_program_that_leaves_the_root_is_refused(path: str) -> None:
    with pytest.raises(DatasetError, match=r"in dataset\.json leaves the dataset's root"):
        replace(MANIFEST, files={path: FileInfo(bytes=1, checksum="x")})


def test_an_unknown_split_names_those_there_are() -> None:
    with pytest.raises(DatasetError, match="no split 'val'; the dataset has 'train'"):
        MANIFEST.split("val")


def test_checksums_tell_bytes_apart() -> None:
    assert checksum(b"a") == checksum(memoryview(b"a")) != checksum(b"b")
