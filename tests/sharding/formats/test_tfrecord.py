"""TFRecord frames."""

import gzip

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import CorruptionError
from ringfeed.sharding.formats.tfrecord import (
    FOOTER_BYTES,
    HEADER_BYTES,
    compress,
    decompress,
    frame_records,
    iterate_records,
)

pytestmark = pytest.mark.usefixtures("implementation")

# Written by tf.io.TFRecordWriter of TensorFlow 2.21.0 for the payloads b"", b"ringfeed", b"ab"; 2026-11-21
GOLDEN = bytes.fromhex(
    "000000000000000029039807d8ea82a20800000000000000ff86240f72696e6766656564c053a36d"
    "020000000000000078270b3461621cb0f0f4"
)
PAYLOADS = [b"", b"ringfeed", b"ab"]


def framed(payloads: list[bytes]) -> pa.LargeBinaryArray:
    return frame_records(pa.array(payloads, pa.large_binary()))


def test_bytes_equal_those_of_tensorflow() -> None:
    assert b"".join(framed(PAYLOADS).to_pylist()) == GOLDEN
    assert [payload for _, payload in iterate_records(GOLDEN, "x")] == PAYLOADS


@given(st.lists(st.binary(max_size=40), max_size=8) | st.lists(st.binary(min_size=9, max_size=9), max_size=8))
def test_records_are_read_with_their_offsets(payloads: list[bytes]) -> None:
    frames = framed(payloads)
    data = (frames.buffers()[2] or pa.py_buffer(b"")).to_pybytes()
    assert data == b"".join(frames.to_pylist())
    found = list(iterate_records(data, "x"))
    assert [payload for _, payload in found] == payloads
    for offset, payload in found:
        start = offset + HEADER_BYTES
        assert data[start : start + len(payload)] == payload
    assert len(data) == sum(len(p) + HEADER_BYTES + FOOTER_BYTES for p in payloads)


def test_a_slice_is_framed_like_its_records() -> None:
    payloads = pa.array([b"aa", b"bb", b"cc", b"d"], pa.large_binary())
    for start, length in [(1, 2), (2, 2), (1, 0)]:
        part = frame_records(payloads.slice(start, length))
        assert part.to_pylist() == framed(payloads.to_pylist()[start : start + length]).to_pylist()


@given(position=st.integers(0, len(GOLDEN) - 1), flip=st.integers(1, 255))
def test_every_flipped_byte_is_found_and_its_record_named(position: int, flip: int) -> None:
    data = bytearray(GOLDEN)
    data[position] ^= flip
    record = 0 if position < 16 else 1 if position < 40 else 2
    with pytest.raises(CorruptionError, match=f"x: record {record} at offset {(0, 16, 40)[record]}"):
        list(iterate_records(bytes(data), "x"))


@given(length=st.integers(0, len(GOLDEN) - 1))
def test_every_truncation_is_found(length: int) -> None:
    if length in (0, 16, 40):  # whole records: only the checksum of the file can tell
        assert len(list(iterate_records(GOLDEN[:length], "x"))) == (0, 16, 40).index(length)
        return
    with pytest.raises(CorruptionError):
        list(iterate_records(GOLDEN[:length], "x"))


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_compression_is_reversible_and_holds_no_timestamp(compression: str) -> None:
    data = compress(GOLDEN * 9, compression)
    assert decompress(bytes(data), compression) == GOLDEN * 9
    assert data == compress(GOLDEN * 9, compression)
    if compression == "gzip":
        assert gzip.decompress(data) == GOLDEN * 9
