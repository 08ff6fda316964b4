"""The guarantees of loaders and mixtures, for random combinations of all their options."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader, LoaderPlan, Mixture, Ragged, Ramp, RecordRange
from ringfeed.pipeline.order.class_shares import parse_balance, target_weights
from ringfeed.sharding import AppendOptions, BuildOptions, ConfigError, CorruptionError, append, build, open_dataset
from ringfeed.sharding.compute.keyed_random import derive_key

Ints = npt.NDArray[np.int64]
Samples = dict[str, npt.NDArray[Any]]
KINDS: dict[str, dict[str, Any]] = {
    "fixed": {"records": 97, "tokens": False, "shards": 4, "compression": "gzip"},
    "appended": {"records": 60, "appended": 33, "tokens": False, "shards": 3},
    "variable": {"records": 120, "shards": 5, "compression": "zlib"},
    "parquet": {"records": 110, "appended": 21, "shards": 4, "shard_format": "parquet"},
    "one": {"records": 40, "shards": 1, "shard_format": "parquet"},
    "tiny": {"records": 13, "shards": 6, "shard_format": "parquet"},
}
FILTERS: dict[str, Callable[[Ints], npt.NDArray[np.bool_]]] = {
    "id < 61": lambda ids: ids < 61,
    "id == 5": lambda ids: ids == 5,
    "label != 1": lambda ids: label_of(ids) != 1,
    "id / 3 >= 4 and label in (0, 1)": lambda ids: (ids >= 12) & (label_of(ids) < 2),
}
world_sizes = st.sampled_from([1, 2, 3, 4, 5, 7, 9])


def label_of(ids: Any) -> Any:
    return np.where(ids % 17 == 0, 2, np.where(ids % 4 == 0, 1, 0))


def length_of(ids: Any) -> Any:
    return ids * 7919 % 9


def make_table(first: int, stop: int, *, tokens: bool) -> pa.Table:
    ids = np.arange(first, stop)
    columns = {"id": pa.array(ids), "label": pa.array(label_of(ids))}
    if tokens:
        columns["tokens"] = pa.array([[int(i)] * int(length_of(i)) for i in ids], pa.list_(pa.int32()))
    return pa.table(columns)


class Made:
    """A dataset of numbered records, and the ids of each of its shards."""

    def __init__(self, folder: Path, records: int, *, appended: int = 0, tokens: bool = True, **options: Any) -> None:
        self.url = str(folder / "shards")
        pq.write_table(make_table(0, records, tokens=tokens), folder / "source.parquet")
        source = str(folder / "source.parquet")
        fixed = {"splits": {"train": Fraction(1)}, "min_class_records": 1, "label": "label", **options}
        build(BuildOptions(source=source, destination=self.url, **fixed))
        if appended:
            pq.write_table(make_table(records, records + appended, tokens=tokens), folder / "more.parquet")
            append(AppendOptions(source=str(folder / "more.parquet"), destination=self.url, shards=2))
        ids = in_order(Loader(self.url, batch_size=1, shuffle=False))
        shards = open_dataset(self.url).split_shards("train")
        parts = np.split(ids, np.cumsum([shard.records for shard in shards])[:-1])
        self.ids_of = {shard.path: part for shard, part in zip(shards, parts, strict=True)}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    return {name: Made(tmp_path_factory.mktemp(name), **options) for name, options in KINDS.items()}


def in_order(loader: Loader) -> Ints:
    return np.concatenate([batch["id"] for batch in loader.numpy_epoch(0)])


def read(loader: Loader | Mixture, epoch: int, start: int, stop: int) -> Samples:
    """Steps of an epoch as arrays [steps, local batch, ...]; of ragged ones, the lengths."""
    batches = loader.numpy_epoch(epoch, start, prefetch_bytes=0)
    some = [batch for _, batch in zip(range(start, stop), batches, strict=False)]
    batches.close()
    assert len(some) == stop - start
    parts: dict[str, list[Any]] = {}
    for batch in some:
        for name, values in batch.items():
            if isinstance(values, Ragged):
                assert [set(row.tolist()) for row in values.rows()] == [
                    {int(i)} if n else set() for i, n in zip(batch["id"], values.row_lengths, strict=True)
                ]
                values = values.row_lengths
            assert len(values) == loader.local_batch_size
            parts.setdefault(name, []).append(values)
    return {name: np.stack(values) for name, values in parts.items()}


def global_batches(
    make: Callable[..., Any], reader: Any, batch_size: int, world_size: int, epoch: int, start: int, stop: int
) -> Samples:
    """The global batches, put together from what all ranks read."""
    parts = []
    for rank in range(world_size):
        part = reader(make(rank=rank, world_size=world_size), epoch, start, stop)
        own = (rank + 1) * batch_size // world_size - rank * batch_size // world_size
        if batch_size % world_size:
            assert not part["sample_weight"][:, own:].any()
        parts.append({name: values[:, :own] for name, values in part.items()})
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


def same(found: Samples, expected: Samples) -> None:
    assert set(found) - {"sample_weight"} == set(expected) - {"sample_weight"}
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected.get(name, np.ones_like(values)), err_msg=name)


def by_turns(epoch: int) -> Any:
    return ("uniform", "natural", "power:0.5")[epoch % 3]


balances = st.sampled_from(
    ["natural", "natural", "uniform", "power:0.4", {0: 0.3, 1: 0.7}, "uniform->natural:2", by_turns,
     Ramp(start="natural", end={0: 0.2, 1: 0.2, 2: 0.6}, epochs=3)]
)  # fmt: skip


@st.composite
def loaders(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A kind of dataset, and options of a loader; those in quarantine are told by number."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    streams, piece = draw(st.sampled_from([1, 1, 2, 3, 4])), draw(st.integers(1, 6))
    options: dict[str, Any] = {
        "batch_size": streams * piece,
        "streams": draw(st.sampled_from([streams, None])),
        "window_shards": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 99)),
        "where": draw(st.sampled_from([None, None, *FILTERS])),
        "sample_keys": draw(st.booleans()),
        "columns": draw(st.sampled_from([None, ["id"], ["label", "id"]])),
        "cache": draw(st.sampled_from([None, "memory"])),
        "fetch_threads": draw(st.integers(1, 2)),
        "balance": draw(balances),
    }
    if "label" in (options["where"] or "") and isinstance(options["balance"], dict | Ramp):
        options["balance"] = "uniform"
    if options["balance"] == "natural":
        options["remainder"] = draw(st.sampled_from(["drop", "pad", "wrap"]))
        options["shuffle"] = draw(st.booleans())
        lengths: list[Any] = [None, None, 30]
    else:
        moves = callable(options["balance"]) or isinstance(parse_balance(options["balance"]), Ramp)
        lengths = [None, 31, 300] if moves else [None, "oversample", "undersample", 31, 300]
    options["epoch_length"] = draw(st.sampled_from(lengths)) if options.get("remainder", "drop") == "drop" else None
    if (
        KINDS[kind].get("tokens", True)
        and not options["columns"]
        and options.get("remainder") != "wrap"
        and draw(st.booleans())
    ):
        options |= {"bucket_by": "tokens", "bucket_steps": draw(st.integers(2, 7))}
    if KINDS[kind]["shards"] > 1 and options["where"] in (None, "label != 1"):
        options["quarantined"] = draw(st.lists(st.integers(0, KINDS[kind]["shards"] - 1), unique=True, max_size=2))
    return kind, options


def selected(data: Made, where: str | None) -> Ints:
    ids = np.sort(np.concatenate(list(data.ids_of.values())))
    return ids if where is None else ids[FILTERS[where](ids)]


def ranges(data: Made, where: str | None, found: tuple[RecordRange, ...]) -> Ints:
    kept = selected(data, where)
    of_shard = {path: ids[np.isin(ids, kept)] for path, ids in data.ids_of.items()}
    return np.concatenate([np.empty(0, np.int64), *(of_shard[r.shard][r.start : r.stop] for r in found)])


def failure(error: Exception) -> str:
    """What a combination is refused with: nothing else may be raised."""
    assert isinstance(error, ConfigError) or "needed records are in quarantine" in str(error)
    return str(error)


def with_paths(data: Made, options: dict[str, Any]) -> dict[str, Any]:
    return options | {"quarantined": [sorted(data.ids_of)[number] for number in options.get("quarantined", ())]}


def check_loader(data: Made, given: dict[str, Any], epoch: int, world_size: int, cut: float) -> str:
    options = with_paths(data, given)

    def make(**ranks: Any) -> Loader:
        return Loader(data.url, **options, **ranks)

    try:
        loader = make()
        plan = loader.plan(epoch)
    except (ConfigError, CorruptionError) as error:
        return failure(error)
    batch_size, steps = options["batch_size"], loader.steps_per_epoch
    whole = global_batches(make, read, batch_size, 1, epoch, 0, steps)
    step = min(int(cut * steps), steps - 1)
    rest = global_batches(make, read, batch_size, world_size, epoch, step, steps)
    same(rest, {name: values[step:] for name, values in whole.items()})
    more = global_batches(make, read, batch_size, world_size, epoch, 0, step) if step else None
    if more is not None:
        same(more, {name: values[:step] for name, values in whole.items()})
    check_content(data, options, whole)
    check_plan(data, options, loader, plan, epoch, whole)
    assert make(rank=0, world_size=world_size).plan(epoch).filled == steps * (-batch_size % world_size)
    if options["cache"]:  # so that no file is fetched twice
        reader = make(rank=world_size - 1, world_size=world_size)
        read(reader, epoch, 0, steps)
        assert reader.stats()["fetch"].bytes <= plan.bytes_per_rank[0]
        assert reader.stats()["fetch"].bytes <= reader.plan(epoch).bytes_per_rank[-1]
    if options["sample_keys"]:
        firsts = whole["sample_key"][..., 0]
        assert len(np.unique(firsts)) == firsts.size
    if "bucket_by" in options:
        plain = {name: value for name, value in options.items() if not name.startswith("bucket")}
        ids = global_batches(lambda **r: Loader(data.url, **plain, **r), read, batch_size, 1, epoch, 0, steps)["id"]
        for start in range(0, steps, options["bucket_steps"]):
            span = slice(start, start + options["bucket_steps"])
            counted = whole["sample_weight"][span] == 1 if "sample_weight" in whole else np.s_[:]
            assert sorted(ids[span][counted].ravel()) == sorted(whole["id"][span][counted].ravel())
    return "ok"


def check_content(data: Made, options: dict[str, Any], whole: Samples) -> None:
    ids = whole["id"]
    bad = [data.ids_of[path] for path in options.get("quarantined", ())]
    assert np.isin(ids, selected(data, options["where"])).all()
    assert not np.isin(ids, np.concatenate([np.empty(0, np.int64), *bad])).any()
    np.testing.assert_array_equal(whole["class_id"], label_of(ids))
    if "label" in whole:
        np.testing.assert_array_equal(whole["label"], label_of(ids))
    if "tokens" in whole:
        np.testing.assert_array_equal(whole["tokens"], length_of(ids))


def check_plan(
    data: Made, options: dict[str, Any], loader: Loader, plan: LoaderPlan, epoch: int, whole: Samples
) -> None:
    ids, records = whole["id"], selected(data, options["where"])
    weight = whole.get("sample_weight", np.ones(ids.shape))
    assert (plan.steps, plan.steps * plan.batch_size) == (len(ids), ids.size)
    assert plan.padded == np.count_nonzero(weight == 0)
    assert plan.padded + plan.wrapped + plan.dropped == 0 or (
        len(records) + plan.padded + plan.wrapped - plan.dropped == ids.size
    )
    assert (plan.row_filter is None) == (options["where"] is None)
    if plan.row_filter is not None:
        assert plan.row_filter.kept == len(records)
    counts = np.bincount(label_of(records), minlength=3)
    assert [mix.records for mix in plan.class_mix.values()] == counts.tolist()
    assert sum(mix.samples for mix in plan.class_mix.values()) == pytest.approx(ids.size - plan.padded)
    again, never = (ranges(data, options["where"], found) for found in (plan.wrapped_records, plan.dropped_records))
    assert (len(again), len(never)) == (plan.wrapped, plan.dropped)
    weights = target_weights(parse_balance(options["balance"]), (0, 1, 2), counts.tolist(), epoch)
    if weights is None and isinstance(options["epoch_length"], int) and options["epoch_length"] > len(records):
        weights = counts / counts.sum()
    if weights is None:
        if not options.get("quarantined"):
            size = int(records[-1]) + 1
            times = np.bincount(ids[weight == 1], minlength=size)
            expected = np.isin(np.arange(size), records) + np.bincount(again, minlength=size)
            np.testing.assert_array_equal(times, expected - np.bincount(never, minlength=size))
        return
    per_batch = np.stack([(label_of(ids) == value).sum(axis=1) for value in range(3)])
    assert (np.abs(per_batch - weights[:, None] * plan.batch_size) < 1 + 1e-6).all()
    assert (np.abs(per_batch.sum(axis=1) - weights * ids.size) < 1 + 1e-6).all()
    for mix, seats in zip(plan.class_mix.values(), per_batch, strict=True):
        assert (mix.samples, mix.per_batch) == (seats.sum(), (seats.min(), seats.max()))


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Options of sources, the first word of whose names is the kind of dataset, and of their mixture."""
    kinds = draw(st.sampled_from([["fixed", "appended"], ["parquet", "one", "tiny"], ["variable"]]))
    names = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
    columns = draw(st.sampled_from([None, ["id"]]))
    sources = {}
    for number, kind in enumerate(names):
        given: dict[str, Any] = {"balance": draw(balances), "columns": columns}
        given["where"] = draw(st.sampled_from([None, None, "id < 61", "id > 2"]))
        given["epoch_length"] = draw(st.sampled_from([None, None, 7, 12, 150 if given["balance"] != "natural" else 9]))
        given["shuffle"] = draw(st.booleans()) if given["balance"] == "natural" else True
        given["window_shards"] = draw(st.integers(1, 2))
        if KINDS[kind]["shards"] > 1 and given["where"] is None:
            given["quarantined"] = draw(st.lists(st.integers(0, KINDS[kind]["shards"] - 1), max_size=1))
        sources[f"{kind} {number}"] = given
    streams, piece = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 6))
    weights: list[Any] = [
        "natural",
        "uniform",
        "power:0.5",
        "uniform->natural:2",
        dict.fromkeys(sources, 0) | {next(iter(sources)): 1.0},
    ]
    options = {
        "batch_size": streams * piece,
        "streams": draw(st.sampled_from([streams, None])),
        "seed": draw(st.integers(0, 99)),
        "weights": draw(st.sampled_from(weights)),
        "sample_keys": draw(st.booleans()),
        "steps_per_epoch": draw(st.sampled_from([None, 5, 20])),
    }
    return sources, options


def check_mixture(
    made: dict[str, Made], given: dict[str, Any], options: dict[str, Any], epoch: int, world_size: int, cut: float
) -> str:
    chosen = {name: made[name.split()[0]] for name in given}
    sources = {name: with_paths(data, given[name]) | {"url": data.url} for name, data in chosen.items()}

    def make(**ranks: Any) -> Mixture:
        return Mixture(sources, **options, **ranks)

    try:
        mixture = make()
        plan = [mixture.plan(earlier) for earlier in range(epoch + 1)][epoch]
    except (ConfigError, CorruptionError) as error:
        return failure(error)
    batch_size, steps = options["batch_size"], mixture.steps_per_epoch
    epochs = [global_batches(make, read, batch_size, 1, earlier, 0, steps) for earlier in range(epoch + 1)]
    whole = epochs[epoch]
    step = min(int(cut * steps), steps - 1)
    rest = global_batches(make, read, batch_size, world_size, epoch, step, steps)
    same(rest, {name: values[step:] for name, values in whole.items()})
    assert (plan.steps, plan.steps * plan.batch_size) == (steps, whole["id"].size)
    for number, name in enumerate(sources):
        per_batch = (whole["source_id"] == number).sum(axis=1)
        mix = plan.sources[name]
        assert (mix.samples, mix.per_batch) == (per_batch.sum(), (per_batch.min(), per_batch.max()))
        assert mix.per_batch[1] - mix.per_batch[0] <= 1
        key = derive_key(options["seed"], "mixture", name)
        options_of = sources[name]
        if options_of["balance"] == "natural" and (options_of["shuffle"] or options_of["epoch_length"] is None):
            if not options_of.get("quarantined"):
                check_passes(mix.records, epochs, number)
            continue
        loader = Loader(**options_of, batch_size=plan.streams, streams=plan.streams, seed=key)
        check_laps(loader, epochs, number, plan.streams)
    return "ok"


def check_passes(records: int, epochs: list[Samples], source: int) -> None:
    """A record of a dataset comes again once all others have been served."""
    served = np.concatenate([samples["id"][samples["source_id"] == source] for samples in epochs])
    for start in range(0, len(served), records):
        assert len(np.unique(served[start : start + records])) == len(served[start : start + records])


def check_laps(loader: Loader, epochs: list[Samples], source: int, streams: int) -> None:
    """Each stream takes what the same stream of a balanced dataset's own loader gives, epoch after epoch."""
    shape = (-1, streams, epochs[0]["id"].shape[1] // streams)
    laps: list[Ints] = []
    for stream in range(streams):
        ids, sources = (
            np.concatenate([samples[name].reshape(shape)[:, stream].ravel() for samples in epochs])
            for name in ("id", "source_id")
        )
        served = ids[sources == source]
        while len(laps) * loader.steps_per_epoch < len(served):
            laps.append(read(loader, len(laps), 0, loader.steps_per_epoch)["id"])
        if len(served):
            np.testing.assert_array_equal(served, np.concatenate(laps)[: len(served), stream])


class TestLoader:
    @settings(max_examples=25, deadline=None)
    @given(loaders(), st.integers(0, 4), world_sizes, st.floats(0, 1))
    def test_promises_hold(self, made: Any, drawn: Any, epoch: int, world_size: int, cut: float) -> None:
        check_loader(made[drawn[0]], drawn[1], epoch, world_size, cut)

    @pytest.mark.campaign
    @settings(max_examples=3000, deadline=None)
    @given(loaders(), st.integers(0, 4), world_sizes, st.floats(0, 1))
    def test_campaign(self, made: Any, drawn: Any, epoch: int, world_size: int, cut: float) -> None:
        check_loader(made[drawn[0]], drawn[1], epoch, world_size, cut)


class TestMixture:
    @settings(max_examples=10, deadline=None)
    @given(mixtures(), st.integers(0, 2), world_sizes, st.floats(0, 1))
    def test_promises_hold(self, made: Any, drawn: Any, epoch: int, world_size: int, cut: float) -> None:
        check_mixture(made, *drawn, epoch, world_size, cut)

    @pytest.mark.campaign
    @settings(max_examples=1000, deadline=None)
    @given(mixtures(), st.integers(0, 2), world_sizes, st.floats(0, 1))
    def test_campaign(self, made: Any, drawn: Any, epoch: int, world_size: int, cut: float) -> None:
        check_mixture(made, *drawn, epoch, world_size, cut)
