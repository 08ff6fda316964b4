"""A filter selects the records for which its expression is true, in an order that no rank changes."""

import math
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader
from ringfeed.pipeline.select.shard_filter import filter_parquet
from ringfeed.pipeline.select.where_expression import open_filter
from ringfeed.sharding import BuildOptions, ConfigError, CorruptionError, build
from ringfeed.sharding.formats.parquet import write_parquet
from ringfeed.sharding.schema import Schema
from tests.helpers.numbered_records import make_table, rewrite
from tests.helpers.reading import read
from tests.servers.store import Store

Make = Callable[..., str]
RECORDS = 1000
EXPRESSIONS = {
    "id < 700": lambda i: i < 700,
    "label == 1": lambda i: i % 5 == 0 and i % 50 != 0,
    "label != 0 or id >= 900": lambda i: i % 5 == 0 or i >= 900,
    "not (id > 10 and id / 2 < 450.5)": lambda i: not (i > 10 and i / 2 < 450.5),
}
FORMATS = ["tfrecord", "parquet"]
many = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def expected(text: str) -> list[int]:
    return [i for i in range(RECORDS) if EXPRESSIONS[text](i)]


@many
@given(
    st.sampled_from(list(EXPRESSIONS)),
    st.sampled_from(FORMATS),
    st.sampled_from([1, 2, 6]),
    st.sampled_from(["natural", "uniform"]),
    st.integers(0, 100),
)
def test_global_batches_hold_the_records_that_pass_and_do_not_depend_on_ranks(
    make_dataset: Make, text: str, shard_format: str, world_size: int, balance: str, seed: int
) -> None:
    if balance == "uniform" and text == "label == 1":
        balance = "natural"
    url = make_dataset(RECORDS, shard_format=shard_format)
    options: dict[str, Any] = {"batch_size": 12, "streams": 6, "seed": seed, "balance": balance, "where": text}
    loader = Loader(url, **options)
    whole, plan = read(loader, 1), loader.plan(1)
    ranks = [read(Loader(url, rank=rank, world_size=world_size, **options), 1) for rank in range(world_size)]
    for name, values in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in ranks], axis=1), values)
    step = seed % loader.steps_per_epoch
    np.testing.assert_array_equal(read(loader, 1, step)["id"], whole["id"][step:])

    ids = whole["id"].reshape(-1).tolist()
    assert set(ids) <= set(expected(text))
    assert plan.row_filter is not None
    assert plan.row_filter.kept == len(expected(text)) == sum(mix.records for mix in plan.class_mix.values())
    if balance == "natural":
        assert len(set(ids)) == len(ids) == len(expected(text)) - plan.dropped
    else:
        per_batch = np.stack([(whole["label"] == value).sum(axis=1) for value in range(3)])
        assert np.abs(per_batch - 4).max() <= 1


@pytest.mark.parametrize("fixed", [True, False])
def test_every_kind_of_record_and_of_expression_gives_the_same_batches(make_dataset: Make, fixed: bool) -> None:
    batches = []
    for shard_format in FORMATS:
        url = make_dataset(RECORDS, shard_format=shard_format, fixed=fixed)
        for where in ("100 <= id < 700", (pc.field("id") >= 100) & (pc.field("id") < 700)):
            loader = Loader(url, batch_size=24, seed=3, balance="uniform", where=where, columns=["label", "vector"])
            batches.append([{n: v.tolist() for n, v in batch.items()} for batch in loader.numpy_epoch(1)])
            assert set(batches[-1][0]) == {"label", "vector", "class_id"}
    assert all(other == batches[0] for other in batches[1:])
    tensors = [{n: v.numpy().tolist() for n, v in batch.items()} for batch in loader.epoch(1)]
    assert tensors == batches[0]


@pytest.mark.parametrize("shard_format", FORMATS)
def test_times_are_compared_with_texts(tmp_path: Path, shard_format: str) -> None:
    times = pa.array(np.arange(np.datetime64("2020-01-01"), np.datetime64("2020-02-10")).astype("M8[us]"))
    pq.write_table(pa.table({"id": range(40), "t": times}), tmp_path / "a.parquet")
    build(BuildOptions(source=str(tmp_path / "a.parquet"), destination=str(tmp_path / "o"), shard_format=shard_format))
    loader = Loader(str(tmp_path / "o"), batch_size=9, where="'2020-02-01' <= t", shuffle=False)
    assert sorted(np.concatenate([batch["id"] for batch in loader.numpy_epoch(0)]).tolist()) == list(range(31, 40))


def test_the_plan_reports_what_was_read_and_skipped(make_dataset: Make) -> None:
    url = make_dataset(RECORDS, shard_format="parquet")
    by_label = Loader(url, batch_size=12, where="label == 1").plan().row_filter
    assert by_label is not None
    assert (by_label.records, by_label.kept, by_label.shards, by_label.shards_kept) == (1000, 180, 7, 7)
    assert by_label.row_groups == by_label.bytes_read == 0
    few = Loader(url, batch_size=1, where="id < 2").plan()
    assert few.row_filter is not None
    assert few.row_filter.kept == few.steps == 2
    assert few.row_filter.shards_kept <= 2
    assert few.row_filter.row_groups == 7
    assert few.row_filter.row_groups_skipped >= 5
    assert few.row_filter.bytes_skipped > few.row_filter.row_groups_skipped * 500
    assert few.class_mix[1].records == 0
    assert Loader(url, batch_size=12).plan().row_filter is None


def test_a_shard_without_passing_records_is_not_opened(make_dataset: Make) -> None:
    loader = Loader(make_dataset(RECORDS, shard_format="parquet"), batch_size=1, where="id in (3, 400)")
    ids = [batch["id"].item() for batch in loader.numpy_epoch(0)]
    assert sorted(ids) == [3, 400]
    assert loader.stats()["open"].items <= 2


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("idd < 3", "where 'idd < 3': there is no column 'idd'; did you mean 'id'"),
        ("id + 1", "where 'id \\+ 1': the expression must be true or false"),
        ("id < 0", "none of the 1000 records passes where 'id < 0'"),
        ("__import__('os')", "is not allowed"),
        (7, "where must be a text or a pyarrow.compute expression, got 7"),
        (pc.field("idd") < 1, r"there is no column 'idd'; did you mean 'id'\? The columns here are: id, vector"),
        (pc.field("id", "x") < 1, "there is no column 'Nested.*; the columns here are: id, vector, label$"),
        (pc.field("id") == "a", r"where '\(id == \"a\"\)'"),
        (pc.scalar(True), "names no column"),
        ((pc.field(0) < 9) & (pc.field("label") == "rare"), r"refer to columns by name, such as pc.field\('id'\), not"),
    ],
)
def test_invalid_filters_are_refused(make_dataset: Make, where: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Loader(make_dataset(RECORDS), batch_size=12, where=where)


def test_damage_is_seen_when_records_are_counted_and_a_false_count_when_they_are_read(
    make_dataset: Make, tmp_path: Path
) -> None:
    shutil.copytree(make_dataset(RECORDS, shard_format="parquet"), tmp_path / "copy")
    url = str(tmp_path / "copy")
    first, second = (tmp_path / "copy" / f"train-0000{i}-of-00007.parquet" for i in range(2))
    whole = first.read_bytes()
    options: dict[str, Any] = {"batch_size": 12, "where": "id < 700"}

    rewrite(first, second.read_bytes())  # whole in itself
    loader = Loader(url, **options)
    rewrite(first, whole)
    with pytest.raises(CorruptionError, match=r"train-00000-of-00007\.parquet: \d+ of its records passed where"):
        read(loader)

    column = pq.ParquetFile(first).metadata.row_group(0).column(0)
    damaged = bytearray(whole)
    damaged[column.data_page_offset + column.total_compressed_size - 9] ^= 1
    rewrite(first, damaged)
    with pytest.raises(CorruptionError, match=r"train-00000-of-00007\.parquet is damaged: .*CRC"):
        Loader(url, **options)
    first.unlink()
    with pytest.raises(CorruptionError, match=r"train-00000-of-00007\.parquet is missing"):
        Loader(url, **options)


def test_parts_of_parquet_shards_are_read_on_every_store(store: Store, tmp_path: Path) -> None:
    pq.write_table(make_table(300), tmp_path / "source.parquet")
    source, url = str(tmp_path / "source.parquet"), f"{store.url}/data"
    build(BuildOptions(source=source, destination=url, label="label", shards=4, shard_format="parquet"))
    loader = Loader(url, batch_size=7, where="id < 50 and label != 'rare'")
    assert sorted(np.concatenate([b["id"] for b in loader.numpy_epoch(0)]).tolist()) == list(range(1, 50))
    plan = loader.plan()
    assert plan.row_filter is not None
    assert plan.row_filter.bytes_read < plan.bytes_per_rank[0]


numbers = st.one_of(st.none(), st.sampled_from([0.0, 1.0, -1.5, 2.0, math.nan, math.inf]))
rows_of_three = st.tuples(st.one_of(st.none(), st.integers(-3, 3)), numbers, st.sampled_from(["a", "b", None]))
atoms = st.sampled_from(
    ["i < 1", "i >= 0.5", "i == 2", "i != 2", "i in (1, 3)", "i not in (1, 3)", "f < 1", "f >= 0", "f == 1", "f != 1",
     "not (f < 1)", "f not in (0, 2)", "s == 'a'", "s > 'a'", "s is null", "f is not null", "i + 1 > 2", "-1 < i < 2",
     "i < f", "not i > 0"]
)  # fmt: skip
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        inner.map(lambda text: f"not ({text})"),
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(rows_of_three, min_size=1), expressions, st.integers(1, 6))
def test_statistics_rule_out_no_passing_record(rows: list[Any], text: str, group_rows: int) -> None:
    kinds = pa.schema({"i": pa.int16(), "f": pa.float64(), "s": pa.string()})
    columns = [pa.array(list(values), kind) for values, kind in zip(zip(*rows, strict=True), kinds.types, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=kinds)
    data = write_parquet(batch, "none", group_rows)
    chosen = open_filter(text, Schema.from_arrow(kinds, None))
    kept = filter_parquet(BytesIO(data.to_pybytes()), chosen, check_pages=True)
    whole = chosen.rows({name: batch.column(name) for name in kinds.names})
    np.testing.assert_array_equal(kept.rows, whole)
    rows_read = [row for row in range(len(rows)) if row // group_rows in (kept.groups or ())]
    assert [rows_read[row] for row in kept.rows_in_groups] == whole.tolist()


def test_a_pyarrow_filter_keeps_nan_that_statistics_omit() -> None:
    batch = pa.record_batch({"f": pa.array([1.0, math.nan, 10.0, 10.0])})
    chosen = open_filter(~(pc.field("f") < 5), Schema.from_arrow(batch.schema, None))
    kept = filter_parquet(BytesIO(write_parquet(batch, "none", 2).to_pybytes()), chosen, check_pages=True)
    assert kept.rows.tolist() == [1, 2, 3]
