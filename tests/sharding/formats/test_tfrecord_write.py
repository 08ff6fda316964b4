"""Framing messages in pieces gives the bytes of framing them whole."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.formats.example_encode import encode_examples, encode_pieces
from ringfeed.sharding.formats.tfrecord import frame_records, iterate_records
from ringfeed.sharding.formats.tfrecord_write import Frames, frame_pieces
from ringfeed.sharding.schema import Schema

pytestmark = pytest.mark.usefixtures("implementation")


def joined(framed: Frames) -> bytes:
    return b"".join(bytes(run) for run in framed.runs)


values = st.one_of(st.none(), st.binary(max_size=40))


@given(rows=st.lists(st.tuples(values, st.text(max_size=5), values), min_size=1, max_size=8), cut=st.integers(0, 7))
@pytest.mark.parametrize("run_bytes", [1, 10, 1 << 20])
def test_pieces_make_the_frames_of_whole_messages(
    rows: list[tuple[bytes | None, str, bytes | None]], cut: int, run_bytes: int
) -> None:
    a, b, c = zip(*rows, strict=True)
    batch = pa.record_batch({"a": pa.array(a, pa.binary()), "b": pa.array(b), "c": pa.array(c, pa.binary())})
    batch = batch.slice(cut)
    schema = Schema.from_arrow(batch.schema, None)
    framed = frame_pieces(encode_pieces(batch, schema), run_bytes=run_bytes)
    whole = frame_records(encode_examples(batch, schema, None)).to_pylist()
    assert joined(framed) == b"".join(whole)
    assert framed.lengths.tolist() == list(map(len, whole))


def test_large_values_are_framed_and_read_back() -> None:
    images = [bytes([i]) * (5000 * i) for i in range(4)]
    batch = pa.record_batch({"image": pa.array(images, pa.binary()), "n": pa.array(range(4))})
    framed = frame_pieces(encode_pieces(batch, Schema.from_arrow(batch.schema, None)))
    data = joined(framed)
    payloads = [payload for _, payload in iterate_records(data, "x")]
    assert payloads == encode_examples(batch, Schema.from_arrow(batch.schema, None), None).to_pylist()
