"""TensorFlow copies strings from their addresses (`chunk_encoding`), and resizes images, by `operations.c`."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline.decode.columns import copy_views, locate_views, view_bytes
from ringfeed.pipeline.deliver import chunk_encoding
from ringfeed.pipeline.deliver.operations import copy_views_operation, resize_operation
from ringfeed.sharding import BuildOptions, build
from tests.helpers.reading import loader_with


@given(
    values=st.lists(st.binary(max_size=30), min_size=1, max_size=6), start=st.integers(0, 6), margin=st.integers(0, 2)
)
@pytest.mark.parametrize("span", [1 << 30, 16])
def test_the_copies_are_those_of_python(values: list[bytes], start: int, margin: int, span: int) -> None:
    values = [b"<<" + value + b">>" for value in values]
    ends = np.cumsum([len(value) for value in values], dtype=np.int64)
    starts = ends - [len(value) for value in values]
    views = view_bytes(pa.py_buffer(b"".join(values)), starts, ends, span).slice(start)
    addresses, lengths = locate_views(views, before=margin, after=margin)
    copy = copy_views_operation()
    assert copy is not None
    found = copy(addresses, lengths).numpy().tolist()
    assert found == copy_views(views, before=margin, after=margin).tolist()
    assert found == [value[margin : len(value) - margin] for value in values[start:]]


@pytest.mark.parametrize("shape", [[2], [3, 2]], ids=str)
def test_addresses_and_lengths_of_other_shapes_are_refused(shape: list[int]) -> None:
    copy = copy_views_operation()
    assert copy is not None
    with pytest.raises(tf.errors.InvalidArgumentError, match="one shape"):
        copy(tf.zeros([2, 3], tf.int64), tf.zeros(shape, tf.int64))


def test_a_negative_length_is_refused() -> None:
    copy = copy_views_operation()
    assert copy is not None
    with pytest.raises(tf.errors.InvalidArgumentError, match="negative"):
        copy(tf.zeros([2], tf.int64), tf.constant([0, -1], tf.int64))


@pytest.mark.parametrize("nulls", [False, True], ids=["features", "examples"])
def test_batches_are_the_same_without_the_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nulls: bool
) -> None:
    """Also of texts that do not fit into their views, and of whole examples, which nulls make of records."""
    texts = ["" if i % 5 == 0 else "long enough to lie elsewhere " * (i % 3) + str(i) for i in range(500)]
    if nulls:
        texts[7] = None  # type: ignore[call-overload]
    pq.write_table(pa.table({"id": range(500), "text": pa.array(texts)}), tmp_path / "texts.parquet")
    build(BuildOptions(source=str(tmp_path / "texts.parquet"), destination=str(tmp_path / "data"), shards=3))
    chunks = {"large_record": 1, "large_bytes": 4096}
    calls: list[tuple[tf.Tensor, ...]] = []

    def counted(*views: tf.Tensor) -> tf.Tensor:
        calls.append(views)
        return operation(*views)

    operation, epochs = copy_views_operation(), []
    assert operation is not None
    for chosen in (counted, None):
        monkeypatch.setattr(chunk_encoding, "copy_views_operation", lambda chosen=chosen: chosen)
        how: dict[str, Any] = {"batch_size": 48, "seed": 3, "fill": {"text": "?"} if nulls else {}}
        epoch = loader_with(chunks, str(tmp_path / "data"), **how).epoch(1, 4)
        epochs.append([{name: (v.dtype, to_list(v)) for name, v in batch.items()} for batch in epoch])
        assert calls
    assert epochs[0] == epochs[1]
    assert len(calls) == 1  # of one string a record: the text, or the example


def to_list(values: tf.Tensor | tf.RaggedTensor) -> list[object]:
    found: list[object] = values.to_list() if isinstance(values, tf.RaggedTensor) else values.numpy().tolist()
    return found


@given(
    source=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_images_are_resized_as_by_tensorflow(
    source: tuple[int, int], target: tuple[int, int], channels: int, seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (*source, channels), np.uint8)
    resize = resize_operation()
    assert resize is not None
    expected = tf.image.resize(tf.cast(image, tf.float32), target, antialias=True)
    np.testing.assert_allclose(resize(image, target), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((4, 4), [2, 2]), ((0, 4, 3), [2, 2]), ((4, 4, 3), [2, 0]), ((4, 4, 3), [2, -1]), ((4, 4, 3), [2])],
)
def test_an_image_that_cannot_be_resized_is_refused(shape: tuple[int, ...], size: list[int]) -> None:
    resize = resize_operation()
    assert resize is not None
    with pytest.raises(tf.errors.InvalidArgumentError, match="an image must be"):
        resize(tf.zeros(shape, tf.uint8), size)
