"""Strings that TensorFlow copies from where they lie."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline import Loader, columns, delivery
from ringfeed.pipeline import loader as loader_module
from ringfeed.pipeline.columns import copy_views, view_bytes
from ringfeed.pipeline.view_ops import copy_operation, locate_views


@given(
    values=st.lists(st.binary(max_size=30), min_size=1, max_size=6), start=st.integers(0, 6), margin=st.integers(0, 2)
)
@pytest.mark.parametrize("span", [1 << 30, 16])
def test_the_copies_are_those_of_python(values: list[bytes], start: int, margin: int, span: int) -> None:
    values = [b"<<" + value + b">>" for value in values]
    ends = np.cumsum([len(value) for value in values], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_VIEW_SPAN", span)
        views = view_bytes(pa.py_buffer(b"".join(values)), ends - [len(value) for value in values], ends).slice(start)
    addresses, lengths = locate_views(views, before=margin, after=margin)
    copy = copy_operation()
    assert copy is not None
    found = copy(addresses, lengths).numpy().tolist()
    assert found == copy_views(views, before=margin, after=margin).tolist()
    assert found == [value[margin : len(value) - margin] for value in values[start:]]


def test_addresses_and_lengths_of_other_shapes_are_refused() -> None:
    copy = copy_operation()
    assert copy is not None
    with pytest.raises(tf.errors.InvalidArgumentError, match="one shape"):
        copy(tf.zeros([3], tf.int64), tf.zeros([2], tf.int64))


@pytest.mark.parametrize("columns", [None, ["id"]])
def test_batches_are_the_same_without_the_operation(
    make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch, columns: list[str] | None
) -> None:
    url = make_dataset(fixed=False)
    monkeypatch.setattr(loader_module, "_LARGE_RECORD", 1)
    monkeypatch.setattr(loader_module, "_LARGE_BYTES", 4096)
    epochs = []
    for operation in (copy_operation, lambda: None):
        monkeypatch.setattr(delivery, "copy_operation", operation)
        loader = Loader(url, batch_size=48, seed=3, columns=columns)
        epochs.append([{n: (v.dtype, v.numpy().tolist()) for n, v in batch.items()} for batch in loader.epoch(1, 4)])
    assert epochs[0] == epochs[1]
