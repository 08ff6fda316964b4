"""Scanning damaged TFRecord files finds the intact records."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.formats.tfrecord import frame_records
from ringfeed.sharding.formats.tfrecord_scan import scan_frames

MESSAGES = st.lists(st.binary(max_size=60), min_size=1, max_size=12)


def framed(messages: list[bytes]) -> tuple[bytes, list[tuple[int, int]]]:
    """The bytes of a file, and the bounds of its frames."""
    array = frame_records(pa.array(messages, pa.large_binary()))
    offsets = np.frombuffer(array.buffers()[1], np.int64)[: len(array) + 1].tolist()
    return array.buffers()[2].to_pybytes()[: offsets[-1]], list(pairwise(offsets))


def flip(data: bytes, position: int, mask: int) -> memoryview:
    changed = bytearray(data)
    changed[position] ^= mask
    return memoryview(bytes(changed))


@given(messages=MESSAGES)
def test_intact_frames_are_intact_with_and_without_bounds(messages: list[bytes]) -> None:
    data, bounds = framed(messages)
    for frames in (list(scan_frames(memoryview(data), bounds)), list(scan_frames(memoryview(data), None))):
        assert [(frame.offset, frame.stop) for frame in frames] == bounds
        assert [data[frame.payload] for frame in frames] == messages
        assert not any(frame.problem for frame in frames)


@given(messages=MESSAGES, place=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_one_damaged_byte_damages_its_record_and_no_other(messages: list[bytes], place: float, mask: int) -> None:
    data, bounds = framed(messages)
    position = int(place * len(data))
    (hit,) = (number for number, (start, stop) in enumerate(bounds) if start <= position < stop)
    wounded = flip(data, position, mask)
    known = [frame for frame in scan_frames(wounded, bounds) if frame.problem]
    assert [frame.record for frame in known] == [hit]
    assert known[0].readable == (position - bounds[hit][0] < 12)  # a damaged length leaves the payload as it was
    followed = [frame for frame in scan_frames(wounded, None) if frame.problem]
    assert [(frame.record, frame.offset, frame.stop) for frame in followed] == [(hit, *bounds[hit])]


@given(messages=MESSAGES, cut=st.floats(0, 1, exclude_max=True))
def test_a_truncation_damages_only_what_was_cut_off(messages: list[bytes], cut: float) -> None:
    data, bounds = framed(messages)
    size = int(cut * len(data))
    whole = sum(stop <= size for _, stop in bounds)
    frames = list(scan_frames(memoryview(data[:size]), bounds))
    assert [not frame.problem for frame in frames] == [True] * whole + [False] * (len(bounds) - whole)
    followed = list(scan_frames(memoryview(data[:size]), None))
    assert sum(not frame.problem for frame in followed) == whole


@pytest.mark.parametrize("block", [13, 64, 1 << 20])
def test_the_next_frame_is_found_across_search_blocks(block: int) -> None:
    data, bounds = framed([bytes([i]) * (37 * i) for i in range(1, 9)])
    wounded = bytearray(data)
    for start, _ in (bounds[2], bounds[3], bounds[6]):
        wounded[start] ^= 1
    frames = list(scan_frames(memoryview(bytes(wounded)), None, block))
    assert [(frame.offset, frame.stop) for frame in frames if not frame.problem] == [bounds[i] for i in (0, 1, 4, 5, 7)]
    assert [frame.record for frame in frames] == [0, 1, 2, None, None, None, None]
