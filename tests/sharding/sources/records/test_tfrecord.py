"""TFRecord sources (`tfrecord.py`), and features of their Examples (`example_features.py`)."""

import gzip
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader
from ringfeed.sharding import Feature, SourceError, open_dataset
from ringfeed.sharding.formats import tfrecord as frames
from ringfeed.sharding.sources import Source, open_source
from ringfeed.sharding.sources.base import OWN_SIZES, BadRecord, ReadSizes
from ringfeed.sharding.sources.records.tfrecord import TFRecordSource
from tests.helpers.builds import built
from tests.helpers.contents import kinds, labels, records
from tests.servers.store import Store

Values = list[bytes] | list[float] | list[int]


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def delimited(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def example(**features: Values) -> bytes:
    """A message as protobuf's writers make it; floats are a list with a float in it."""
    entries = b""
    for name, values in features.items():
        if values and isinstance(values[0], bytes):
            value = delimited(1, b"".join(delimited(1, v) for v in values if isinstance(v, bytes)))
        elif values and isinstance(values[0], float):
            value = delimited(2, delimited(1, np.array(values, "<f4").tobytes()))
        else:
            value = delimited(3, delimited(1, b"".join(varint(int(v)) for v in values)) if values else b"")
        entries += delimited(1, delimited(1, name.encode()) + delimited(2, value))
    return delimited(1, entries)


def frame(payload: bytes, length: int | None = None) -> bytes:
    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    head = struct.pack("<Q", len(payload) if length is None else length)
    return head + masked(head) + payload + masked(payload)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write_file(*messages: bytes, name: str = "x.tfrecord") -> str:
        (tmp_path / name).write_bytes(b"".join(map(frame, messages)))
        return str(tmp_path / name)

    return write_file


def open_lenient(url: str, label: str | None, sizes: ReadSizes = OWN_SIZES) -> Source:
    """Passes over bad records where types are inferred: who reads them meets them again."""
    return open_source(url, label, reject=lambda _: None, sizes=sizes)


JPEG = b"\xff\xd8\xff\xe0" + bytes(20)


def test_features_are_inferred_over_all_records(write: Callable[..., str]) -> None:
    rows: list[dict[str, Values]] = [
        {"id": [i], "x": [0.5, i + 0.25], "text": [b"gr\xc3\xbcn"], "raw": [b"\xff\xfe"], "image": [JPEG], "n": [1] * i}
        for i in range(4)
    ]
    rows[2] = {"id": [-2], "tags": [b"a", b""], "x": [1.0, 2.0]}
    source = open_source(write(*(example(**row) for row in rows)), "id")
    assert kinds(source) == {
        "id": ("int64", (), ""),
        "image": ("binary", (), "image"),
        "n": ("int64", (None,), ""),
        "raw": ("binary", (), ""),
        "tags": ("string", (2,), ""),
        "text": ("string", (), ""),
        "x": ("float32", (2,), ""),
    }
    found = records(source)
    assert found[1] == {
        "id": 1, "image": JPEG, "n": [1], "raw": b"\xff\xfe", "tags": None, "text": "grün", "x": [0.5, 1.25]
    }  # fmt: skip
    assert found[2] == {
        "id": -2, "image": None, "n": None, "raw": None, "tags": ["a", ""], "text": None, "x": [1.0, 2.0]
    }  # fmt: skip
    assert labels(source) == [0, 1, -2, 3]
    assert source.sample(source.parts[0], 2).to_pylist() == found[:2]


def test_a_late_record_widens_a_type(write: Callable[..., str]) -> None:
    sizes = ReadSizes(block_bytes=64)
    late = example(text=[b"\xff"], image=[b"no image, but no text \xff either"], x=[1.0])
    source = open_source(write(*[example(text=[b"BM"], image=[JPEG], x=[1.0, 2.0])] * 50, late), None, sizes=sizes)
    assert kinds(source) == {"image": ("binary", (), ""), "text": ("binary", (), ""), "x": ("float32", (None,), "")}
    assert records(source)[-1] == {"image": b"no image, but no text \xff either", "text": b"\xff", "x": [1.0]}


def test_declared_types_are_used(write: Callable[..., str]) -> None:
    pixels = np.arange(6, dtype=np.uint8)
    row = {"a": [*range(6)], "b": [pixels.tobytes()], "c": [1], "d": [np.float64(0.1).tobytes()], "e": [7]}
    given = (
        Feature(name="a", dtype="uint8", shape=(2, 3)),
        Feature(name="b", dtype="uint8", shape=(3, 2)),
        Feature(name="c", dtype="bool"),
        Feature(name="d", dtype="float64"),
    )
    url = write(example(**row), example(**(row | {"a": [5] * 6})), example(c=[0]))
    source = TFRecordSource.open(url, "c", {feature.name: feature for feature in given})
    assert source.schema.features[:4] == given
    assert kinds(source)["e"] == ("int64", (), "")
    assert records(source) == [
        {"a": [*range(6)], "b": [*range(6)], "c": True, "d": 0.1, "e": 7},
        {"a": [5] * 6, "b": [*range(6)], "c": True, "d": 0.1, "e": 7},
        {"a": None, "b": None, "c": False, "d": None, "e": None},
    ]


@pytest.mark.parametrize(
    ("feature", "values", "reason"),
    [
        (Feature(name="x", dtype="uint8"), [256], "has a value that uint8 does not hold"),
        (Feature(name="x", dtype="bool"), [2], "has a value that bool does not hold"),
        (Feature(name="x", dtype="float16"), [1e9], "has a value that float16 does not hold"),
        (Feature(name="x", dtype="int64", shape=(2, 2)), [1, 2, 3], "has 3 values, not 4"),
        (Feature(name="x", dtype="int64"), [0.5], "holds float values, not int64"),
        (Feature(name="x", dtype="string"), [1], "holds int64 values, not string"),
        (Feature(name="x", dtype="string"), [b"\xff"], "is not UTF-8"),
        (Feature(name="x", dtype="float64"), [b"123"], "is no run of float64 elements"),
        (Feature(name="x", dtype="float64", shape=(2,)), [b"12345678"], "has 1 values, not 2"),
        (Feature(name="x", dtype="uint8", shape=(1,)), [b"1", b"1"], "is no run of uint8 elements"),
    ],
)
def test_records_that_do_not_fit_declared_types_are_skipped_alike(
    write: Callable[..., str], feature: Feature, values: Values, reason: str
) -> None:
    url = write(example(x=values, y=[0]), example(y=[1]), example(x=values, y=[2]), example(y=[3]))
    source = TFRecordSource.open(url, "y", {"x": feature})
    first: list[BadRecord] = []
    second: list[BadRecord] = []
    assert labels(source, reject=first.append) == [1, 3]
    assert records(source, reject=second.append) == [{"x": None, "y": 1}, {"x": None, "y": 3}]
    assert first == second
    assert first[0].reason == f"the feature 'x' {reason}"
    assert [bad.place.partition(" at ")[0] for bad in first] == ["record 0", "record 2"]
    with pytest.raises(SourceError, match=r"x\.tfrecord: record 0 at offset 0: the feature 'x'"):
        labels(source)


def test_a_missing_declared_feature_is_refused(write: Callable[..., str]) -> None:
    with pytest.raises(SourceError, match="no record has the feature 'z'"):
        TFRecordSource.open(write(example(x=[1])), None, {"z": Feature(name="z", dtype="int64")})


def test_a_feature_of_two_kinds_is_refused(write: Callable[..., str]) -> None:
    with pytest.raises(SourceError, match=r"record 0: .* int64 values, but float values in .*record 1; write the same"):
        open_source(write(example(x=[1]), example(x=[1.5])), None)


@pytest.mark.parametrize(
    "pack", [gzip.compress, zlib.compress, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]) + bytes(7)]
)
@pytest.mark.parametrize("name", ["x.tfrecord.gz", "x.tfrecord", "part-0001"])
def test_compression_is_detected_whatever_the_name(tmp_path: Path, pack: Callable[[bytes], bytes], name: str) -> None:
    plain = b"".join(frame(example(i=[i])) for i in range(3000))
    (tmp_path / name).write_bytes(pack(plain))
    source = open_source(str(tmp_path / name), "i", "tfrecord")
    assert labels(source) == [*range(3000)]
    (tmp_path / name).write_bytes(plain)
    assert labels(open_source(str(tmp_path / name), "i", "tfrecord")) == [*range(3000)]


def test_a_plain_file_whose_first_length_looks_like_gzip_is_read(write: Callable[..., str]) -> None:
    empty = len(example(x=[b""])) + 6  # lengths of three bytes, three times
    size = 0x088B1F - empty - 2
    message = next(m for n in range(size - 8, size + 12) if len(m := example(x=[bytes(n)])) == 0x088B1F)
    url = write(message)
    assert Path(url).read_bytes()[:3] == b"\x1f\x8b\x08"
    assert len(records(open_lenient(url, None))) == 1


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_every_truncation_is_reported(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    data = compress(b"".join(frame(example(i=[i], t=[b"\xff" * i])) for i in range(5)))
    whole = [0, *(len(b"".join(frame(example(i=[i], t=[b"\xff" * i])) for i in range(n))) for n in range(1, 5))]
    source = None
    for length in range(len(data), 0, -1):
        (tmp_path / "x.tfrecord").write_bytes(data[:length])
        if source is None:
            source = open_lenient(str(tmp_path), "i")
            continue
        bad: list[BadRecord] = []
        found = labels(source, reject=bad.append)
        assert found == [*range(len(found))]
        if compress is bytes and length in whole:  # whole records: the format cannot tell
            assert (len(bad), len(found)) == (0, whole.index(length))
            continue
        (told,) = bad
        assert told.place.startswith(f"record {len(found)} at offset ")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_every_flipped_byte_is_reported_alike_in_both_passes(tmp_path: Path, data: st.DataObject) -> None:
    messages = [example(i=[i], t=[bytes(i)]) for i in range(6)]
    content = bytearray(b"".join(map(frame, messages)))
    (tmp_path / "x.tfrecord").write_bytes(content)
    source = open_lenient(str(tmp_path), "i")
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    (tmp_path / "x.tfrecord").write_bytes(content)
    starts = np.cumsum([0, *(len(message) + 16 for message in messages)])
    hit = int(np.searchsorted(starts, position, side="right")) - 1
    in_length = position - starts[hit] < 12
    bad: list[BadRecord] = []
    again: list[BadRecord] = []
    found = labels(source, reject=bad.append)
    assert [row["i"] for row in records(source, reject=again.append)] == found
    assert bad == again
    assert found == [i for i in range(6) if (i < hit if in_length else i != hit)]
    assert bad[0].place == f"record {hit} at offset {starts[hit]}"
    assert ("the records after it cannot be located" in bad[0].reason) == in_length


@pytest.mark.parametrize("length", [2**60, 2**63 + 5, 2**64 - 1, (1 << 30) + 1, 1 << 29])
def test_a_damaged_length_allocates_nothing(tmp_path: Path, length: int, peak: Callable[[], int]) -> None:
    (tmp_path / "x.tfrecord").write_bytes(frame(example(i=[1])) + frame(b"abc", length))
    source = open_lenient(str(tmp_path), "i")
    before = peak()
    bad: list[BadRecord] = []
    assert labels(source, reject=bad.append) == [1]
    assert "the file ends within the record" in bad[0].reason
    assert peak() - before < 100 << 20


@pytest.fixture
def peak() -> Callable[[], int]:
    import resource

    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_record_too_large_is_skipped_and_the_next_is_read(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_RECORD_BYTES", 1 << 10)
    sizes = ReadSizes(block_bytes=100)
    url = write(example(i=[0]), example(t=[bytes(5000)]), example(i=[2]))
    bad: list[BadRecord] = []
    source = open_lenient(url, "i", sizes=sizes)
    assert labels(source, reject=bad.append) == [0, 2]
    assert "more than the limit of 1,024" in bad[0].reason
    assert bad[0].place.startswith("record 1 at offset ")


def test_other_messages_than_examples_are_reported_and_skipped(write: Callable[..., str]) -> None:
    step = delimited(
        1, delimited(1, b"s") + delimited(2, delimited(1, delimited(1, b"")) + delimited(1, delimited(3, b"")))
    )
    sequence = delimited(2, step)
    source = open_lenient(write(example(i=[0]), b"no message", sequence, example(i=[3])), "i")
    bad: list[BadRecord] = []
    assert labels(source, reject=bad.append) == [0, 3]
    assert [b.place.partition(" at ")[0] for b in bad] == ["record 1", "record 2"]
    again: list[BadRecord] = []
    TFRecordSource.open(source.url, "i", reject=again.append)
    assert again == bad
    assert "no tf.train.Example" in bad[0].reason
    assert "the steps of the feature list 's' hold values of several types" in bad[1].reason


def test_sequence_examples_become_columns_as_tensorflow_parses_them(tmp_path: Path) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    makers: dict[str, Callable[[Values], Any]] = {
        "tokens": lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values)),
        "boxes": lambda values: tf.train.Feature(float_list=tf.train.FloatList(value=values)),
        "words": lambda values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)),
    }
    steps: list[dict[str, list[Values]]] = [
        {"tokens": [[3], [1], [2]], "boxes": [[0.5, 0.25], [], [1.5]], "words": [[b"a"], [b"b", b"c"], [b""]]},
        {"tokens": [], "boxes": [[2.5]], "words": [[b"d"]]},
        {"tokens": [[-7]], "words": [[b"e"]]},
    ]
    messages = [
        tf.train.SequenceExample(
            context=tf.train.Features(feature={"id": makers["tokens"]([number])}),
            feature_lists=tf.train.FeatureLists(
                feature_list={name: tf.train.FeatureList(feature=map(makers[name], own)) for name, own in lists.items()}
            ),
        ).SerializeToString()
        for number, lists in enumerate(steps)
    ]
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"".join(map(frame, messages)))
    ragged = {
        "tokens": tf.io.RaggedFeature(tf.int64), "boxes": tf.io.RaggedFeature(tf.float32),
        "words": tf.io.RaggedFeature(tf.string),
    }  # fmt: skip
    built(str(path), tmp_path / "out", label=None)
    batch = next(iter(Loader(str(tmp_path / "out"), batch_size=3).epoch(0)))
    order = batch["id"].numpy().tolist()
    for name, kind in ragged.items():
        lengths, values = batch[f"{name}.lengths"], batch[f"{name}.values"]
        inner = tf.RaggedTensor.from_row_lengths(values.flat_values, lengths.flat_values)
        found = tf.RaggedTensor.from_row_lengths(inner, lengths.row_lengths()).to_list()
        for number, lists in zip(order, found, strict=True):
            if name in steps[number]:
                _, parsed = tf.io.parse_single_sequence_example(messages[number], sequence_features={name: kind})
                assert lists == parsed[name].to_list()
            else:
                assert lists == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no records"),
        (b"not a TFRecord at all", "record 0 at offset 0: the length is damaged"),
        (frame(b""), "the records hold no features"),
        (frame(b"text"), "record 0 at offset 0: it is no tf.train.Example"),
    ],
)
def test_files_without_records_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.tfrecord").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        open_source(str(tmp_path), None)


def test_parts_are_runs_of_numbered_records(tmp_path: Path) -> None:
    sizes = ReadSizes(part_bytes=200, block_bytes=300)
    content = bytearray(b"".join(frame(example(i=[i])) for i in range(100)))
    size = len(content) // 100
    content[70 * size + 15] ^= 1
    content[90 * size] ^= 1
    (tmp_path / "x.tfrecord").write_bytes(content)
    source = open_lenient(str(tmp_path), "i", sizes=sizes)
    assert len(source.parts) > 10
    assert [part.first_record for part in source.parts] == [part.pieces[0] // size for part in source.parts]
    bad: list[BadRecord] = []
    assert labels(source, reject=bad.append) == [i for i in range(90) if i != 70]
    assert [b.place for b in bad] == [f"record 70 at offset {70 * size}", f"record 90 at offset {90 * size}"]


@pytest.mark.parametrize(
    "name", ["a.tfrecord-00000-of-00002", "a.tfrecord-00000", "a.tfrecords", "A.TFRECORD.gz", "b.tfrec"]
)
def test_the_usual_names_are_known(write: Callable[..., str], tmp_path: Path, name: str) -> None:
    write(example(i=[1]), name=name)
    assert isinstance(open_source(str(tmp_path), "i"), TFRecordSource)


def test_numbered_names_are_read_if_the_kind_is_given(write: Callable[..., str], tmp_path: Path) -> None:
    for i in range(3):
        write(example(i=[i]), name=f"train-0000{i}-of-00003")
    (tmp_path / "notes.txt").write_text("no records")
    assert labels(open_source(str(tmp_path), "i", "tfrecord")) == [0, 1, 2]
    assert labels(open_source(str(tmp_path / "train-*"), "i", "tfrecord")) == [0, 1, 2]
    assert labels(open_source(str(tmp_path / "train-00001-of-00003"), "i", "tfrecord")) == [1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="there is no TFRecord file"):
        open_source(str(tmp_path / "empty"), "i", "tfrecord")


def test_every_store_is_read(store: Store) -> None:
    sizes = ReadSizes(part_bytes=1000)
    store.write_bytes("x.tfrecord", b"".join(frame(example(i=[i])) for i in range(200)))
    source = open_source(store.url, "i", sizes=sizes)
    assert len(source.parts) > 2
    assert labels(source) == [*range(200)]


def test_a_ringfeed_dataset_is_rebuilt_from_its_shards(parquet: str, tmp_path: Path) -> None:
    first = built(parquet, tmp_path / "one", label="label", shards=2)
    features = {feature.name: feature for feature in first.manifest.schema.features}
    source = TFRecordSource.open(str(tmp_path / "one" / "*.tfrecord"), "label", features)
    rows = records(source)
    table = {row["id"]: row for row in records(open_source(parquet, "label"))}
    assert {row["id"]: row for row in rows} == table
    again = built(str(tmp_path / "one" / "*.tfrecord"), tmp_path / "two", label="label", shards=3)
    assert again.manifest.records == first.manifest.records
    assert again.manifest.classes == first.manifest.classes
    assert open_dataset(str(tmp_path / "two")).manifest.layout is None


def test_what_tensorflow_writes_is_read(tmp_path: Path) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    rng = np.random.default_rng(0)
    rows = [
        {
            "x": rng.normal(size=8).astype(np.float32).tolist(),
            "y": int(rng.integers(-9, 10**12)),
            "s": [f"ü{i}"] * (i % 3),
        }
        for i in range(300)
    ]
    for name, options in {"a.tfrecord": None, "b.tfrecord.gz": "GZIP", "c.tfrecord": "ZLIB"}.items():
        with tf.io.TFRecordWriter(str(tmp_path / name), options) as writer:
            for row in rows:
                feature = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=row["x"])),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[row["y"]])),
                    "s": tf.train.Feature(bytes_list=tf.train.BytesList(value=[s.encode() for s in row["s"]])),
                }
                message = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(message.SerializeToString())
    source = open_source(str(tmp_path), "y")
    assert kinds(source) == {"s": ("string", (None,), ""), "x": ("float32", (8,), ""), "y": ("int64", (), "")}
    assert records(source) == rows * 3
