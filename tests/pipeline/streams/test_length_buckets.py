"""Batches of similar lengths: all guarantees hold, and less is padded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader, Pad
from ringfeed.pipeline.streams.length_buckets import assign_by_length
from ringfeed.sharding import BuildOptions, ConfigError, build

RECORDS = 600
GOLDEN = [413, 492, 242, 542, 392, 92, 221, 121, 192, 421, 171, 521]
LONG_GOLDEN = [354, 54, 454, 4, 562, 462, 541, 491, 233, 183, 362, 312]
Ints = npt.NDArray[np.int64]


def length_of(ids: Any) -> Any:
    return 1 + ids * 7919 % 50


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Records of 1 to 50 tokens; every fifth is of a class of its own."""
    folder: Path = tmp_path_factory.mktemp("texts")
    ids = np.arange(RECORDS)
    tokens = [[1000 + int(i)] * int(length_of(i)) for i in ids]  # of two bytes each in TFRecords
    table = pa.table({"id": ids, "tokens": pa.array(tokens, pa.list_(pa.int32())), "label": (ids % 5 == 0).astype(int)})
    pq.write_table(table, folder / "source.parquet")
    made = {}
    for shard_format in ("tfrecord", "parquet"):
        made[shard_format] = str(folder / shard_format)
        source = str(folder / "source.parquet")
        options: dict[str, Any] = {"label": "label", "shards": 4, "splits": {"train": 1}, "shard_format": shard_format}
        build(BuildOptions(source=source, destination=made[shard_format], **options))
    return made


def ids_of(url: str, start_step: int = 0, **options: Any) -> Ints:
    loader = Loader(url, **{"batch_size": 12, "streams": 3, "seed": 4, **options})
    if loader.manifest.shard_format == "tfrecord":
        return np.stack([batch["id"].numpy() for batch in loader.epoch(1, start_step)])
    chunks = [columns["id"].reshape(steps, -1) for steps, columns in loader.chunks(1, start_step)]
    return np.concatenate(chunks)


def padding(ids: Ints) -> float:
    """The part of padded batches that is padding."""
    lengths = length_of(ids)
    return float(1 - lengths.sum() / (lengths.max(axis=1) * lengths.shape[1]).sum())


options_of_order = st.fixed_dictionaries(
    {
        "balance": st.sampled_from(["natural", "uniform"]),
        "streams": st.sampled_from([1, 3, 12]),
        "window_shards": st.integers(1, 2),
        "bucket_steps": st.integers(2, 60),
        "seed": st.integers(0, 100),
    }
)


def check_guarantees(url: str, options: dict[str, Any], world_size: int, step: int) -> None:
    whole = ids_of(url, bucket_by="tokens", **options)
    ranks = [ids_of(url, bucket_by="tokens", rank=r, world_size=world_size, **options) for r in range(world_size)]
    np.testing.assert_array_equal(np.concatenate(ranks, axis=1), whole)
    np.testing.assert_array_equal(ids_of(url, step, bucket_by="tokens", **options), whole[step:])
    plain = ids_of(url, **options)
    if options["balance"] == "uniform":
        np.testing.assert_array_equal(plain % 5 == 0, whole % 5 == 0)
    span = options["bucket_steps"]
    for start in range(0, len(whole), span):
        assert sorted(plain[start : start + span].ravel()) == sorted(whole[start : start + span].ravel())


@settings(max_examples=20, deadline=None)
@given(options_of_order, st.sampled_from([2, 3, 4]), st.integers(0, 49))
def test_bucketing_does_not_depend_on_ranks_resumes_and_keeps_the_records_of_a_span(
    texts: dict[str, str], options: dict[str, Any], world_size: int, step: int
) -> None:
    check_guarantees(texts["parquet"], options, world_size, step)


def test_the_order_is_the_same_in_every_version_of_the_code(texts: dict[str, str]) -> None:
    """Recorded 2026-11-25. A change ends older runs, and needs a new ORDER_VERSION."""
    assert ids_of(texts["parquet"], 5, bucket_by="tokens", bucket_steps=16)[0].tolist() == GOLDEN


def test_a_span_may_be_longer_than_an_epoch(texts: dict[str, str]) -> None:
    """Recorded 2026-11-25."""
    assert ids_of(texts["parquet"], 5, bucket_by="tokens", bucket_steps=65_536)[0].tolist() == LONG_GOLDEN


def test_records_that_are_parsed_later_are_bucketed_too(texts: dict[str, str]) -> None:
    options = {"balance": "uniform", "streams": 3, "window_shards": 1, "bucket_steps": 7}
    check_guarantees(texts["tfrecord"], options, 2, 10)


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("balance", ["natural", "uniform"])
def test_bucketing_saves_most_of_the_padding(texts: dict[str, str], shard_format: str, balance: str) -> None:
    plain = padding(ids_of(texts[shard_format], balance=balance))
    sorted_ = padding(ids_of(texts[shard_format], balance=balance, bucket_by="tokens", bucket_steps=16))
    assert plain > 0.4
    assert sorted_ < plain / 2


def test_every_record_comes_once_with_padding_too(texts: dict[str, str]) -> None:
    options: dict[str, Any] = {"batch_size": 32, "streams": 16, "remainder": "pad", "bucket_by": "tokens"}
    seen = []
    for rank in (0, 1):
        for batch in Loader(texts["parquet"], rank=rank, world_size=2, **options).epoch(0):
            seen += batch["id"].numpy()[batch["sample_weight"].numpy() == 1].tolist()
    assert sorted(seen) == list(range(RECORDS))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 2)), max_size=30))
def test_each_class_is_sorted_into_its_own_positions(entries: list[tuple[int, int, int]]) -> None:
    lengths, ranks, classes = np.array(entries, np.int64).reshape(-1, 3).T
    rows = np.arange(100, 100 + len(entries))
    found = assign_by_length(rows, lengths, ranks, classes)
    assert sorted(found) == rows.tolist()
    np.testing.assert_array_equal(classes[found - 100], classes)
    for value in set(classes.tolist()):
        places = np.flatnonzero(classes == value)
        by_rank = lengths[found - 100][places[np.argsort(ranks[places], kind="stable")]]
        assert (np.diff(by_rank) >= 0).all()


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_padded_batches_hold_the_values_lengths_and_masks(texts: dict[str, str], shard_format: str) -> None:
    loader = Loader(texts[shard_format], batch_size=60)
    for length, multiple in ((None, 1), (None, 16), (64, 1)):
        pad = Pad(feature="tokens", length=length, multiple_of=multiple, value=-1)
        batch = next(iter(loader.epoch(0, transform=pad)))
        ids, tokens = batch["id"].numpy(), batch["tokens"].numpy()
        width = length or -(-int(length_of(ids).max()) // multiple) * multiple
        assert tokens.shape == (60, width)
        np.testing.assert_array_equal(batch["tokens_length"], length_of(ids))
        np.testing.assert_array_equal(batch["tokens_mask"], np.arange(width) < length_of(ids)[:, None])
        np.testing.assert_array_equal(tokens, np.where(batch["tokens_mask"], 1000 + ids[:, None], -1))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float64", 0.1),
        ("float64", -123456789.0),
        ("float64", 1e300),
        ("uint64", 2**64 - 1),
        ("string", "é"),
        ("bool", True),
    ],
)
def test_what_is_put_in_is_the_value_itself(dtype: str, value: Any) -> None:
    row = np.array([value]).astype(object if dtype == "string" else dtype)
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant(row, dtype), [1])
    padded = Pad(feature="x", length=2, value=value)({"x": ragged})["x"].numpy()
    assert padded[0, 1] == padded[0, 0]


def test_padding_puts_nothing_in_the_place_of_another_feature(texts: dict[str, str]) -> None:
    loader = Loader(texts["parquet"], batch_size=60)
    taken = [lambda element: {**element, "tokens_length": element["id"]}, Pad(feature="tokens")]
    with pytest.raises(ConfigError, match="already has a feature 'tokens_length'"):
        loader.epoch(0, transform=taken)


def test_what_is_too_long_is_refused_or_cut(texts: dict[str, str]) -> None:
    loader = Loader(texts["parquet"], batch_size=60)
    cut = next(iter(loader.epoch(0, transform=Pad(feature="tokens", length=10, truncate=True))))
    assert cut["tokens"].shape == cut["tokens_mask"].shape == (60, 10)
    np.testing.assert_array_equal(cut["tokens_length"], np.minimum(length_of(cut["id"].numpy()), 10))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"tokens is longer than Pad\(length=10\)"):
        next(iter(loader.epoch(0, transform=Pad(feature="tokens", length=np.int64(10)))))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no feature 'id' of variable length"):
        loader.epoch(0, transform=Pad(feature="id"))


@pytest.mark.parametrize(
    ("dtype", "fit", "unfit"),
    [
        (tf.string, ["-", b"", np.str_("a")], [0, 1.5, False, ["-"]]),
        (tf.float32, [0, -0.1, np.float64(2), float("nan")], ["x", b"", object(), [0.5], np.zeros(2)]),
        (tf.uint8, [0, 255, 1.0, np.int64(2)], ["0", 0.5, -1, 256, 2**70, float("nan")]),
        (tf.bool, [True, np.False_, 0], ["no", 2]),
    ],
)
def test_a_value_of_another_dtype_is_refused(dtype: tf.DType, fit: list[Any], unfit: list[Any]) -> None:
    element = {"x": tf.RaggedTensor.from_row_lengths(tf.zeros([0], dtype), [0, 0])}
    for value in fit:
        padded = Pad(feature="x", length=1, value=value)(element)["x"]
        np.testing.assert_array_equal(padded, tf.cast([[value], [value]], dtype))
    for value in unfit:
        with pytest.raises(ConfigError, match=f"value of Pad must be one {dtype.name}, as feature 'x' holds, got"):
            Pad(feature="x", value=value)(element)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bucket_by": "words"}, "bucket_by names 'words', which is no feature; they are: id, tokens, label"),
        ({"bucket_by": "id"}, "all values of 'id' have one length, 1"),
        ({"bucket_by": "tokens", "bucket_steps": 1}, "bucket_steps must be at least 2, got 1"),
        ({"bucket_by": "tokens", "bucket_steps": 10**9}, "must be at most 65536, got 1000000000: an epoch has 50"),
        ({"bucket_by": "tokens", "remainder": "wrap"}, "bucket_by needs remainder='drop' or 'pad'"),
    ],
)
def test_invalid_buckets_are_refused(texts: dict[str, str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Loader(texts["parquet"], batch_size=12, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"length": 8, "multiple_of": 4}, "multiple_of must be at least 1, and 1 where length is given, got 4"),
        ({"truncate": True}, "truncate=True needs a length"),
    ],
)
def test_invalid_padding_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Pad(feature="tokens", **options)
