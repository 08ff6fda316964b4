"""Frames are gathered as views, also from files that need several buffers, and copied once (`columns`)."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from ringfeed.pipeline.decode.columns import concat_columns, copy_views, slice_columns, take_columns, take_from_segments
from ringfeed.pipeline.decode.tfrecord_frames import join_frames, open_tfrecord
from ringfeed.pipeline.select.sample_columns import EXAMPLES
from ringfeed.sharding.formats.tfrecord import FOOTER_BYTES, HEADER_BYTES
from tests.helpers.reading import loader_with

MARGINS = {"before": HEADER_BYTES, "after": FOOTER_BYTES}
MESSAGES = [bytes([number]) * (number % 9) for number in range(50)]


def opened(messages: list[bytes], span: int) -> dict[str, pa.Array]:
    framed = [len(m).to_bytes(8, "little") + b"crc." + m + b"crc." for m in messages]
    lengths = np.array([len(frame) for frame in framed])
    index = pa.record_batch({"offset": np.cumsum(lengths) - lengths, "length": lengths})
    return dict(open_tfrecord(pa.py_buffer(b"".join(framed)), index, None, span))


@pytest.mark.parametrize("span", [1 << 30, 64])
def test_views_are_taken_concatenated_and_copied(span: int) -> None:
    first, second = opened(MESSAGES[:30], span), opened(MESSAGES[30:], span)
    first[EXAMPLES].validate(full=True)
    rows = np.random.default_rng(0).permutation(50)
    taken = take_from_segments([first, second], [0, 30], rows)
    assert copy_views(taken[EXAMPLES], **MARGINS).tolist() == [MESSAGES[row] for row in rows]
    both = slice_columns(concat_columns([first, second]), 20, 45)
    some = take_columns(both, np.array([24, 0, 3]))
    assert copy_views(some[EXAMPLES], **MARGINS).tolist() == [MESSAGES[44], MESSAGES[20], MESSAGES[23]]
    joined = join_frames(some)[EXAMPLES]
    assert joined.type == pa.large_binary()
    assert [frame.as_py()[HEADER_BYTES:-FOOTER_BYTES] for frame in joined] == [MESSAGES[44], MESSAGES[20], MESSAGES[23]]


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_large_and_small_records_give_equal_batches(make_dataset: Callable[..., str], remainder: str) -> None:
    url = make_dataset(fixed=False)
    batches = []
    for large in (1, 1 << 20):
        chunks = {"large_record": large}
        loader = loader_with(chunks, url, batch_size=48, remainder=remainder, seed=3, sample_keys=True)
        batches.append([{n: v.numpy().tolist() for n, v in batch.items()} for batch in loader.epoch(1, 4)])
    assert batches[0] == batches[1]
    assert {"sample_weight"} & set(batches[0][0]) == ({"sample_weight"} if remainder == "pad" else set())
