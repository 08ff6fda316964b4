"""The decoded size of arrays that share values is found without decoding them, for every kind of sharing."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ringfeed.sharding.compute.batches import BATCH_BYTES, slice_batch
from ringfeed.sharding.compute.decoded_bytes import decoded_bytes, shares_values

TEXTS = ["", "bcd", None, "e" * 300, "bcd", "e" * 300, "f"]


def lists(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 2, 3, 3, 7], pa.int32()), values)


def shared_views(texts: pa.Array, indices: pa.Array) -> pa.Array:
    """Views of the same bytes, which Arrow's own functions do not make."""
    _, views, *data = pa.array(texts.to_pylist(), pa.string_view()).buffers()
    rows = np.frombuffer(views, "V16").take(np.asarray(indices))
    return pa.Array.from_buffers(pa.string_view(), len(indices), [None, pa.py_buffer(rows.tobytes()), *data])


def views(values: pa.Array, sizes: list[int]) -> pa.Array:
    return pa.ListViewArray.from_arrays(pa.array([0] * len(sizes), pa.int32()), pa.array(sizes, pa.int32()), values)


PLAIN = pa.array(TEXTS)
ARRAYS: dict[str, tuple[pa.Array, list[Any]]] = {
    "plain": (PLAIN, TEXTS),
    "dictionary": (PLAIN.dictionary_encode(), TEXTS),
    "text view": (pa.array(TEXTS, pa.string_view()), TEXTS),
    "runs": (pc.run_end_encode(PLAIN), TEXTS),
    "list of dictionary": (lists(PLAIN.dictionary_encode()), [TEXTS[:2], TEXTS[2:3], [], TEXTS[3:]]),
    "list view": (views(PLAIN, [4, 4, 0, 1]), [TEXTS[:4], TEXTS[:4], [], TEXTS[:1]]),
    "dictionary of lists": (
        pa.DictionaryArray.from_arrays(pa.array([1, 1, 0]), lists(PLAIN)), [TEXTS[2:3], TEXTS[2:3], TEXTS[:2]]
    ),
    "struct": (pa.StructArray.from_arrays([PLAIN.dictionary_encode()], ["t"]), TEXTS),
    "fixed list": (pa.FixedSizeListArray.from_arrays(PLAIN.dictionary_encode()[:6], 2),
                   [TEXTS[:2], TEXTS[2:4], TEXTS[4:6]]),
}  # fmt: skip


def size(value: Any, *, listed: bool) -> int:
    """The bytes of a value, counted in Python: its texts, and four for each element of a list of any length."""
    if isinstance(value, list):
        return sum(size(item, listed=listed) + 4 * listed for item in value)
    return len(value or "")


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("start", [0, 1, 2])
def test_sizes_of_rows_are_those_of_their_values(name: str, start: int) -> None:
    array, values = ARRAYS[name]
    found = decoded_bytes(array.slice(start)).tolist()
    assert found == [size(value, listed=name != "fixed list") for value in values[start:]]
    assert shares_values(array.type) == (name != "plain")


@pytest.mark.parametrize("name", ["dictionary", "text view", "runs", "list view", "list of dictionary"])
def test_slices_are_bounded_however_long_values_gather(name: str) -> None:
    """Most rows are short, the last ones 1 MiB: an average would put all long ones into one slice."""
    long, short, rows, many = "x" * (1 << 20), "y", 5000, 100
    texts = pa.array([short, long])
    indices = pa.array([0] * rows + [1] * many, pa.int32())
    dictionary = pa.DictionaryArray.from_arrays(indices, texts)
    ends = pa.array([rows, rows + many], pa.int32())
    arrays = {
        "dictionary": lambda: dictionary,
        "text view": lambda: shared_views(texts, indices),
        "runs": lambda: pa.RunEndEncodedArray.from_arrays(ends, texts),
        "list view": lambda: pa.ListViewArray.from_arrays(
            pa.array([0] * rows + [1] * many, pa.int32()), pa.array([1] * (rows + many), pa.int32()), texts
        ),
        "list of dictionary": lambda: pa.ListArray.from_arrays(
            pa.array(np.arange(rows + many + 1, dtype=np.int32)), dictionary
        ),
    }
    pieces = list(slice_batch(pa.record_batch({"x": arrays[name]()})))
    assert sum(piece.num_rows for piece in pieces) == rows + many
    assert max(int(decoded_bytes(piece["x"]).sum()) for piece in pieces) <= BATCH_BYTES + (1 << 20) + 8 * (rows + many)
    assert len(pieces) < 12


def test_a_record_that_repeats_a_value_beyond_reason_is_refused() -> None:
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(70, np.int32)), pa.array(["x" * (16 << 20)]))
    lists = pa.ListArray.from_arrays(pa.array([0, 70], pa.int32()), values)
    with pytest.raises(pa.ArrowInvalid, match=r"a record takes 1,174,405,400 bytes when the values that it repeats"):
        list(slice_batch(pa.record_batch({"x": lists})))
