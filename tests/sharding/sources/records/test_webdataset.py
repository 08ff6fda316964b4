"""WebDataset archives (`webdataset.py`, `webdataset_members.py`), and reading tar (`tar.py`)."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfeed.sharding import SourceError
from ringfeed.sharding.prepare import Drop, PrepareOptions, Select, Step, open_prepared
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.base import BadRecord
from ringfeed.sharding.sources.records import webdataset as module
from ringfeed.sharding.sources.records.tar import TarReader
from ringfeed.sharding.sources.records.webdataset import WebDatasetSource, expand_braces
from tests.helpers.builds import built
from tests.helpers.contents import kinds, labels, records
from tests.servers.store import Store

Members = list[tuple[str, bytes]]


def tar(members: Members, form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def entry(name: str, kind: bytes, content: bytes = b"", **fields: Any) -> bytes:
    """One member of any type, with no end of the archive after it."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


END = bytes(1024)


def npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write_tar(content: bytes | Members, name: str = "x.tar") -> str:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else tar(content))
        return str(tmp_path / name)

    return write_tar


def test_each_extension_has_its_type(write: Callable[..., str]) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    document = {"width": 3, "box": {"x": 1.5}, "tags": ["a", "b"], "odd": [1, "a"]}
    source = open_source(
        write(
            [
                ("d/a.jpg", b"\xff\xd8"),
                ("d/a.cls", b" 3\n"),
                ("d/a.txt", "grün".encode()),
                ("d/a.json", json.dumps(document).encode()),
                ("d/a.npy", npy(array)),
                ("d/a.seg.png", b"\x89P"),
                ("d/b.JPEG", b"\xff"),
                ("d/b.cls", b"-1"),
                ("d/b.txt", b""),
                ("d/b.json", b'{"width": 2.5, "tags": ["c", "d"], "odd": null, "new": true}'),
                ("d/b.npy", npy(np.asfortranarray(array.T.reshape(2, 3)))),
                ("d/b.bin", b"\x00"),
            ]
        ),
        "cls",
    )
    assert kinds(source) == {
        "__key__": ("string", (), ""),
        "bin": ("binary", (), ""),
        "cls": ("int64", (), ""),
        "jpg": ("binary", (), "image"),
        "json.box.x": ("float64", (), ""),
        "json.new": ("bool", (), ""),
        "json.odd": ("string", (), ""),
        "json.tags": ("string", (2,), ""),
        "json.width": ("float64", (), ""),
        "npy": ("float32", (2, 3), ""),
        "seg.png": ("binary", (), "image"),
        "txt": ("string", (), ""),
    }
    first, second = records(source)
    assert first == {
        "__key__": "d/a", "bin": None, "cls": 3, "jpg": b"\xff\xd8", "json.box.x": 1.5, "json.new": None,
        "json.odd": '[1, "a"]', "json.tags": ["a", "b"], "json.width": 3.0, "npy": [*range(6)], "seg.png": b"\x89P",
        "txt": "grün",
    }  # fmt: skip
    assert second["npy"] == [0, 3, 1, 4, 2, 5]
    assert (second["json.width"], second["json.new"], second["json.odd"], second["bin"]) == (2.5, True, None, b"\0")
    assert labels(source) == [3, -1]
    assert source.sample(source.parts[0], 1).to_pylist() == [first]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([("a.cls", b"3"), ("b.cls", b"cat")], {"cls": ("string", (), "")}),
        ([("a.cls", b"3"), ("b.cls", str(1 << 63).encode())], {"cls": ("string", (), "")}),
        ([("a.cls", b"1"), ("b.cls", b"01\n")], {"cls": ("int64", (), "")}),
        ([("a.npy", npy(np.ones(2))), ("b.npy", npy(np.ones(3)))], {"npy": ("float64", (None,), "")}),
        ([("a.npy", npy(np.ones((2, 1)))), ("b.npy", npy(np.ones((1, 2))))], {"npy": ("binary", (), "")}),
        ([("a.npy", npy(np.ones(2, np.int8))), ("b.npy", npy(np.ones(2, "f4")))], {"npy": ("float32", (2,), "")}),
        ([("a.npy", npy(np.int16(3)))], {"npy": ("int16", (), "")}),
        ([("a.npy", npy(np.float32(0.5))), ("b.cls", b"1")], {"cls": ("int64", (), ""), "npy": ("float32", (), "")}),
        ([("a.json", b"3"), ("b.json", b"[1]")], {"json": ("string", (), "")}),
        ([("a.json", b'{"x": 18446744073709551615}')], {"json.x": ("uint64", (), "")}),
        ([("a.json", b'{"x": 1}'), ("b.json", b'{"x": true}')], {"json.x": ("string", (), "")}),
        ([("a.json", b'{"x": 123456789012345678901}')], {"json.x": ("string", (), "")}),
        ([("a.json", b'{"x": [[1, 2], [3]]}')], {"json.x": ("string", (), "")}),
        ([("a.json", b'{"x": []}'), ("b.json", b'{"x": [0.5, 1]}')], {"json.x": ("float64", (None,), "")}),
        ([("a.json", b'\xef\xbb\xbf{"x": 1}')], {"json.x": ("int64", (), "")}),
        ([("a.json", b'{"x": null}')], {"json.x": ("string", (), "")}),
        ([("a.json", b'{"x": null}'), ("b.json", b'{"x": {"y": 1}}')], {"json.x.y": ("int64", (), "")}),
        ([("a.json", b'{"x": {"y": 1}}'), ("b.json", b"null")], {"json.x.y": ("int64", (), "")}),
        ([("a.pickle", b"cos\nsystem\n(S'x'\ntR.")], {"pickle": ("binary", (), "")}),
    ],
)
def test_types_hold_over_all_records(write: Callable[..., str], members: Members, expected: dict[str, Any]) -> None:
    source = open_source(write(members), None)
    found = kinds(source)
    del found["__key__"]
    assert found == expected
    assert len(records(source)) == len(members)


stems = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/.\0"), min_size=1, max_size=130)
extensions = st.sampled_from(["txt", "cls", "bin", "seg.dat", "jpg"])
contents = {
    "txt": st.text(max_size=20).map(str.encode),
    "cls": st.integers(-(2**63), 2**63 - 1).map(lambda value: str(value).encode()),
    "bin": st.binary(max_size=1500),
    "seg.dat": st.binary(max_size=3),
    "jpg": st.binary(max_size=600),
}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_archives_of_tarfile_round_trip(tmp_path: Path, data: st.DataObject, form: int) -> None:
    keys = data.draw(st.lists(stems, min_size=1, max_size=4, unique=True))
    rows = [{e: data.draw(contents[e]) for e in data.draw(st.sets(extensions, min_size=1))} for _ in keys]
    members = [(f"dir/{key}.{e}", content) for key, row in zip(keys, rows, strict=True) for e, content in row.items()]
    (tmp_path / "x.tar").write_bytes(tar(members, form))
    source = open_source(str(tmp_path), None)
    expected: list[dict[str, Any]] = [{"__key__": f"dir/{key}", **row} for key, row in zip(keys, rows, strict=True)]
    for row in expected:
        row |= {e: row[e].decode() for e in ("txt",) if e in row} | {e: int(row[e]) for e in ("cls",) if e in row}
    found = records(source)
    assert [{name: value for name, value in row.items() if value is not None} for row in found] == expected


def read_cut(path: str) -> tuple[list[int], list[str]]:
    """The labels of the records that pass, and what is told; an archive in which none is whole is refused at once."""
    bad: list[BadRecord] = []
    try:
        source = open_source(path, "cls")
    except SourceError as error:
        return [], [str(error)]
    found = labels(source, reject=bad.append)
    assert [record.place.partition(" (")[0] for record in bad] == [f"record {len(found)}"] * len(bad)
    return found, [record.reason for record in bad]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_every_truncation_is_found(write: Callable[..., str], form: int) -> None:
    long = "" if form == tarfile.USTAR_FORMAT else "n" * 120
    content = tar([(f"{i}{long * (i == 1)}.{e}", b"1" * (i + 1)) for i in range(3) for e in ("cls", "txt")], form)
    whole = -(-len(content.rstrip(b"\0")) // 512) * 512 + 1024  # with both blocks of its end
    assert read_cut(write(content[:whole])) == ([1, 11, 111], [])
    edges = {length for block in range(0, whole + 1, 512) for length in (block - 1, block, block + 1)}
    for length in sorted(edges | {*range(1, whole, 61)}):
        if 0 <= length < whole:
            found, told = read_cut(write(content[:length]))
            assert found == [1, 11, 111][: len(found)]
            assert len(told) == 1, length
            assert "cut short" in told[0] or "half an end" in told[0]


@pytest.mark.parametrize(
    ("ending", "pack"), [(".tar.gz", gzip.compress), (".tgz", gzip.compress), (".tar.bz2", bz2.compress),
     (".tar.xz", lzma.compress), (".tar.zst", lambda data: pa.compress(data, "zstd", asbytes=True))],
)  # fmt: skip
def test_compressed_archives_are_read_and_truncated_ones_reported(
    write: Callable[..., str], ending: str, pack: Callable[[bytes], bytes]
) -> None:
    rng = np.random.default_rng(0)
    content = pack(tar([(f"{i}.{e}", b"7" if e == "cls" else rng.bytes(900)) for i in range(9) for e in ("cls", "b")]))
    assert labels(open_source(write(content, f"x{ending}"), "cls")) == [7] * 9
    for length in range(len(content) - 1, len(content) // 2, -len(content) // 60):
        found, told = read_cut(write(content[:length], f"x{ending}"))
        assert set(found) <= {7}
        assert len(told) == 1, length
        assert "cut short" in told[0] or "damaged" in told[0]


def test_links_and_devices_are_skipped_and_never_followed(write: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    content = b"".join(
        [
            entry("a.cls", tarfile.REGTYPE, b"1"),
            entry("a.txt", tarfile.SYMTYPE, linkname="secret.txt"),
            entry("a.bin", tarfile.LNKTYPE, linkname="/etc/passwd"),
            entry("a.dev", tarfile.CHRTYPE, devmajor=1, devminor=5),
            entry("a.pipe", tarfile.FIFOTYPE),
            entry("a.dir", tarfile.DIRTYPE),
            entry("../../up.cls", tarfile.REGTYPE, b"2"),
            entry("/etc/abs.cls", tarfile.AREGTYPE, b"3"),
            entry("._hidden.cls", tarfile.REGTYPE, b"4"),
            entry("README", tarfile.REGTYPE, b"5"),
            END,
        ]
    )
    before = sorted(tmp_path.rglob("*"))
    source = open_source(write(content), "cls")
    assert records(source) == [
        {"__key__": "a", "cls": 1}, {"__key__": "../../up", "cls": 2}, {"__key__": "/etc/abs", "cls": 3}
    ]  # fmt: skip
    assert sorted(set(tmp_path.rglob("*")) - set(before)) == [tmp_path / "x.tar"]


GOOD = [entry("0.cls", tarfile.REGTYPE, b"0"), entry("2.cls", tarfile.REGTYPE, b"2")]


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (entry("1.cls", b"0", b"1") + entry("1.cls", b"0", b"1"), "it has two members .cls"),
        (entry("1.jpg", b"0", b"1") + entry("1.jpeg", b"0", b"1"), "it has two members .jpg"),
        (entry("1.txt", b"0", b"\xff"), "its .txt: it is not UTF-8"),
        (entry("1.json", b"0", b"{"), "its .json: it is no JSON"),
        (
            entry("1.json", b"0", b'{"a": "\\ud83d"}'),
            "its .json: it is no JSON (half a surrogate pair is no character)",
        ),
        (entry("1.json", b"0", b'{"\\ud83d": 1}'), "its .json: it is no JSON (half a surrogate pair is no character)"),
        (entry("1.json", b"0", b'{"a": -1e400}'), "(the number -1e400 is beyond what a float64 holds)"),
        (entry("1.json", b"0", b'{"a": 1, "a": 2}'), "its .json: it is no JSON (the key 'a' is there twice)"),
        (entry("1.json", b"0", b"[" * 100_000), "its .json: it is "),
        (entry("1.json", b"0", b'{"a.b": 1, "a": {"b": 2}}'), "two of its entries have one name"),
        (entry("1.npy", b"0", npy(np.array([{}], object), allow_pickle=True)), "not of numbers"),
        (entry("1.npy", b"0", npy(np.ones(9))[:-1]), "bytes of numbers, and (9,) of float64 take 72"),
        (entry("1.npy", b"0", npy(np.ones(1)).replace(b"(1,),", b"(9999999999999999999,),", 1)), "its .npy: it "),
        (entry("1.npy", b"0", b"\x93NUMPY\x01\x00\x05\x00{'(\n "), "it is no NumPy file"),
        (entry("1.cls", b"S", b"1"), "its .cls is stored sparse"),
        (entry("\udcff1.cls", b"0", b"1"), "its name is not UTF-8"),
    ],
)
def test_a_bad_record_is_reported_and_skipped_alike(write: Callable[..., str], middle: bytes, reason: str) -> None:
    source = open_source(write(GOOD[0] + middle + GOOD[1] + END), "cls")
    first: list[BadRecord] = []
    second: list[BadRecord] = []
    assert labels(source, reject=first.append) == [0, 2]
    assert [row["cls"] for row in records(source, reject=second.append)] == [0, 2]
    assert first == second
    assert reason in first[0].reason
    assert first[0].place.startswith("record 1 (")
    assert first[0].place.endswith(" at offset 1024")
    with pytest.raises(SourceError, match=r"x\.tar: record 1 \("):
        labels(source)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b"", "the archive is cut short"),
        (bytes(512), "the archive is cut short"),
        (bytes(512) + GOOD[0], "half an end-of-archive marker"),
        (END + GOOD[0] + END, "the archive goes on after its end"),
        (b"x" * 512 + END, "the header is damaged"),
        (
            entry("1.cls", b"0", b"1")[:124]
            + b"\x80"
            + (1 << 60).to_bytes(11, "big")
            + entry("1.cls", b"0", b"1")[136:],
            "damaged",
        ),
        (entry("x", b"x", b"garbage"), "an extended header is damaged"),
        (entry("x", b"x", b"14 size=abcde\n"), "an extended header gives the size b'abcde'"),
        (entry("x", b"x", bytes(1 << 21)), "an extended header of 2,097,152 bytes"),
    ],
)
def test_damage_of_the_archive_is_reported_after_the_records_before_it(
    write: Callable[..., str], tail: bytes, reason: str
) -> None:
    more = entry("5.cls", b"0", b"5") if tail.startswith(entry("x", b"x", b"")[:1]) and len(tail) < 2000 else b""
    source = open_source(write(b"".join(GOOD) + tail + (more + END if more else b"")), "cls")
    bad: list[BadRecord] = []
    assert labels(source, reject=bad.append) == [0]  # the second is not known to be whole
    assert reason in bad[0].reason
    assert [row["cls"] for row in records(source, reject=bad.append)] == [0]
    assert bad[0] == bad[1]


def checksummed(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize("size", [1 << 60, (1 << 88) - 1, (1 << 30) + 1])
def test_a_damaged_size_allocates_nothing(write: Callable[..., str], size: int) -> None:
    lie = bytearray(entry("1.cls", b"0", b"1"))
    lie[124:136] = b"\x80" + size.to_bytes(11, "big")
    source = open_source(write(GOOD[0] + checksummed(lie[:512]) + bytes(512) + END), "cls")
    bad: list[BadRecord] = []
    assert labels(source, reject=bad.append) == [0]
    assert "cut short" in bad[0].reason


def test_a_record_too_large_is_skipped_unread(write: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_RECORD_BYTES", 1000)
    large = entry("1.cls", b"0", b"1") + entry("1.bin", b"0", bytes(5000))
    source = open_source(write(GOOD[0] + large + GOOD[1] + END), "cls")
    bad: list[BadRecord] = []
    assert labels(source, reject=bad.append) == [0, 2]
    assert "more than the 1,000 bytes that are taken on" in bad[0].reason
    assert kinds(source).keys() == {"__key__", "cls"}


def test_labels_read_headers_and_the_label_alone(write: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(
        write([m for i in range(5) for m in ((f"{i}.bin", bytes(3 << 20)), (f"{i}.cls", b"%d" % i))]), "cls"
    )
    read = 0
    some = TarReader._some

    def counted(self: TarReader, count: int) -> bytes:
        nonlocal read
        read += len(piece := some(self, count))
        return piece

    monkeypatch.setattr(TarReader, "_some", counted)
    assert labels(source) == [0, 1, 2, 3, 4]
    assert read < 30_000


@pytest.mark.parametrize(
    ("extension", "contents", "classes", "warned"),
    [
        ("cls", [b"cat", b"cat\n", b" dog\r\n"], ["cat", "cat", "dog"], ""),
        ("txt", [b"cat", b"cat\n"], ["cat", "cat"], ""),
        (
            "cls",
            [b"1", b"01\n", b"1\n"],
            ["1", "01", "1"],
            "'cls' is read as text, because '1' and '01' are one number",
        ),
        ("cls", [b"01", b"02", b"02\n"], [1, 2, 2], ""),
    ],
)
def test_labels_are_without_line_ends_and_spelled_one_way(
    write: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    extension: str,
    contents: list[bytes],
    classes: list[Any],
    warned: str,
) -> None:
    url = write([(f"{i}.{e}", b) for i, b in enumerate(contents) for e, b in ((extension, b), ("caption", b))])
    source = open_source(url, extension)
    assert labels(source) == [row[extension] for row in records(source)] == classes
    assert [row["caption"] for row in records(source)] == [content.decode() for content in contents]
    assert all(warned in record.getMessage() for record in caplog.records)
    assert len(caplog.records) == bool(warned)


@pytest.mark.parametrize("step", [Drop(("txt", "json", "npy")), Select(("cls",))])
def test_unwanted_members_may_be_invalid(write: Callable[..., str], step: Step) -> None:
    url = write([("a.cls", b"1"), ("a.txt", b"\xff"), ("a.json", b"{"), ("a.npy", b""), ("b.cls", b"2")])
    source = open_prepared(url, "cls", "auto", PrepareOptions(steps=(step,)))
    assert [record["cls"] for record in records(source)] == labels(source) == [1, 2]


def test_a_changed_archive_is_noticed(write: Callable[..., str]) -> None:
    source = open_source(write([("a.cls", b"1"), ("b.cls", b"2")]), "cls")
    write([("a.cls", b"1"), ("b.cls", b"cat")])
    with pytest.raises(SourceError, match="the archive changed while it was read"):
        records(source)
    write(tar([("a.cls", b"1"), ("b.cls", b"2")])[:1500])
    with pytest.raises(SourceError, match="the archive changed while it was read"):
        labels(source)


def test_members_that_are_not_adjacent_are_separate_records(write: Callable[..., str]) -> None:
    source = open_source(write([("a.cls", b"1"), ("b.cls", b"2"), ("a.txt", b"x")]), None)
    assert [(row["__key__"], row["cls"], row["txt"]) for row in records(source)] == [
        ("a", 1, None), ("b", 2, None), ("a", None, "x")
    ]  # fmt: skip


def test_several_archives_are_named_with_braces(write: Callable[..., str], tmp_path: Path) -> None:
    for i in range(12):
        write([(f"{i}.cls", b"%d" % i)], f"t-{i:03d}.tar")
    assert labels(open_source(str(tmp_path / "t-{002..010}.tar"), "cls")) == [*range(2, 11)]
    assert labels(open_source(str(tmp_path / "t-*.tar"), "cls")) == [*range(12)]
    assert isinstance(open_source(str(tmp_path), "cls"), WebDatasetSource)
    with pytest.raises(SourceError, match=r"there is nothing at .*t-012\.tar"):
        open_source(str(tmp_path / "t-{011..013}.tar"), "cls")
    with pytest.raises(SourceError, match="more than 1,000,000 names"):
        expand_braces("{0..9999999}")
    assert expand_braces("a{x,y}b{9..10}") == ["axb9", "axb10", "ayb9", "ayb10"]
    assert expand_braces("{a}") == ["{a}"]
    assert expand_braces("{10..08}{1..0}") == ["101", "100", "091", "090", "081", "080"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(END, "holds no records"), (b"", "cut short"), (b"no tar" * 200, "no tar archive"),
     (entry("README", b"0", b"x") + END, "holds no records")],
)  # fmt: skip
def test_files_without_records_are_refused(write: Callable[..., str], content: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(write(content), None)


def test_every_store_is_read(store: Store) -> None:
    members = [(f"{i}.{e}", b"%d" % i * (1 if e == "cls" else 700_000)) for i in range(5) for e in ("cls", "bin")]
    store.write_bytes("a.tar", tar(members))
    store.write_bytes("b.tar.gz", gzip.compress(tar(members)))
    source = open_source(store.url, "cls")
    assert labels(source) == [0, 1, 2, 3, 4] * 2
    assert [row["bin"] for row in records(source)][-1] == b"4" * 700_000


def test_a_dataset_is_built(write: Callable[..., str], tmp_path: Path) -> None:
    members = [(f"{i}.{e}", b"%d" % (i % 3)) for i in range(60) for e in ("cls", "txt", "bin")]
    dataset = built(write(members), tmp_path / "d", label="cls", shards=4, workers=2)
    assert dataset.manifest.records == 60
    assert dataset.manifest.classes == (0, 1, 2)
