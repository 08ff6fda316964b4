"""Damaged shards are reported with their place, or replaced alike by every rank and run."""

import logging
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Balance, Loader, Mixture, Ramp
from ringfeed.pipeline.fetch.quarantine import replacement_rows
from ringfeed.pipeline.select.selected_rows import Selection
from ringfeed.sharding import BuildOptions, ConfigError, CorruptionError, DatasetError, build, open_dataset
from tests.helpers.numbered_records import rewrite
from tests.helpers.reading import batches

Make = Callable[..., str]


def damage(root: Path, *numbers: int, suffix: str = "") -> list[str]:
    """Flip a byte in the middle of shards, or of their indexes; return their paths."""
    shards = [open_dataset(str(root)).shards[number] for number in numbers]
    for shard in shards:
        file = root / (shard.index_path if suffix == "index" else shard.path)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 4
        rewrite(file, data)
    return [shard.path for shard in shards]


def ids_of(root: Path, *numbers: int) -> set[int]:
    """The records of some shards."""
    ids = np.array(batches(Loader(str(root), batch_size=1, shuffle=False))).reshape(-1)
    stops = np.cumsum([shard.records for shard in open_dataset(str(root)).shards])
    shards = np.split(ids, stops[:-1])
    return {int(i) for number in numbers for i in shards[number]}


@pytest.fixture
def copied(make_dataset: Make, tmp_path: Path) -> Callable[..., Path]:
    def copy(**options: Any) -> Path:
        return Path(shutil.copytree(make_dataset(1000, **options), tmp_path / "copy"))

    return copy


class TestRaise:
    @pytest.mark.parametrize(
        ("options", "place"),
        [
            ({}, r"\(record \d+ at offset \d+ "),
            ({"fixed": False}, r"\(record \d+ at offset \d+ "),
            ({"shard_format": "parquet"}, r"\(row group 0, records 0-142, column '\w+' at offset \d+"),
        ],
    )
    def test_the_error_names_shard_and_place(
        self, copied: Callable[..., Path], options: dict[str, Any], place: str
    ) -> None:
        root = copied(**options)
        (path,) = damage(root, 3)
        with pytest.raises(CorruptionError, match=rf"{path} is damaged: its checksum does not match {place}") as caught:
            batches(Loader(str(root), batch_size=10))
        assert f"repair it with: shard-dataset repair {root}" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_the_error_names_an_index_and_a_shard_that_was_cut(self, copied: Callable[..., Path]) -> None:
        root = copied(fixed=False)
        index = root / "_ringfeed/train-00002-of-00007.index"
        whole = index.read_bytes()
        damage(root, 2, suffix="index")
        with pytest.raises(CorruptionError, match=r"train-00002-of-00007\.index is damaged: its checksum"):
            batches(Loader(str(root), batch_size=10))
        rewrite(index, whole)
        victim = root / "train-00002-of-00007.tfrecord"
        rewrite(victim, victim.read_bytes()[:1000])
        with pytest.raises(CorruptionError, match=r"it has 1000 bytes, \d+ were written \(record \d+ at offset"):
            batches(Loader(str(root), batch_size=10))

    def test_a_filter_does_not_change_the_numbers_of_records(self, copied: Callable[..., Path]) -> None:
        root = copied()
        damage(root, 3)
        with pytest.raises(CorruptionError, match=r"record \d+ at offset \d+ .*has"):
            batches(Loader(str(root), batch_size=10, where="label == 1"))


class TestQuarantine:
    @pytest.mark.parametrize("window_shards", [1, 3])
    @pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
    def test_only_bad_records_are_replaced(
        self, make_dataset: Make, copied: Callable[..., Path], shard_format: str, window_shards: int
    ) -> None:
        root = copied(shard_format=shard_format)
        bad = ids_of(root, 1, 4)
        damage(root, 1, 4)
        options = {"batch_size": 10, "window_shards": window_shards, "streams": 2}
        whole = np.array(batches(Loader(make_dataset(1000, shard_format=shard_format), **options)))
        got = np.array(batches(Loader(str(root), on_bad_shard="quarantine", **options)))
        replaced = np.isin(whole, list(bad))
        assert replaced.sum() == len(bad)
        assert (got[~replaced] == whole[~replaced]).all()
        assert not set(got.reshape(-1).tolist()) & bad
        assert max(Counter(got[replaced].tolist()).values()) <= 2  # shared evenly

    @pytest.mark.parametrize("balance", ["natural", "uniform"])
    def test_all_ranks_and_resumed_runs_serve_the_same_records(self, copied: Callable[..., Path], balance: Any) -> None:
        root = copied()
        paths = damage(root, 1, 5)
        options = {"batch_size": 12, "balance": balance, "window_shards": 1, "streams": 4, "seed": 5}
        first = Loader(str(root), on_bad_shard="quarantine", **options)
        whole = batches(first)
        assert list(first.quarantined) == paths
        ranks = [Loader(str(root), on_bad_shard="quarantine", rank=rank, world_size=3, **options) for rank in range(3)]
        assert np.concatenate([batches(loader) for loader in ranks], axis=1).tolist() == whole
        assert set().union(*(loader.quarantined for loader in ranks)) == set(paths)
        halfway = Loader(str(root), on_bad_shard="quarantine", **options)
        assert batches(halfway, start_step=40) == whole[40:]
        for number in (1, 5):
            (root / open_dataset(str(root)).shards[number].path).unlink()  # would be an error, were it asked for
        told = Loader(str(root), quarantined=paths, **options)
        assert batches(told) == whole
        assert batches(told, start_step=17) == whole[17:]
        assert told.stats()["quarantine"].items == 0

    def test_the_class_mix_is_kept(self, copied: Callable[..., Path]) -> None:
        root = copied()
        damage(root, 0, 2, 3)
        loader = Loader(str(root), batch_size=15, balance="uniform", on_bad_shard="quarantine")
        for steps, columns in loader.chunks(0):
            for row in np.asarray(columns["class_id"]).reshape(steps, -1):
                assert np.bincount(row, minlength=3).tolist() == [5, 5, 5]

    def test_it_is_reported(self, copied: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
        root = copied()
        (path,) = damage(root, 6)
        loader = Loader(str(root), batch_size=10, on_bad_shard="quarantine")
        assert loader.plan().quarantined == loader.quarantined == ()
        with caplog.at_level(logging.WARNING):
            batches(loader)
            batches(loader, epoch=1)
        (record,) = (record for record in caplog.records if record.name == "ringfeed.pipeline.quarantine")
        assert path in record.message
        assert "offset" in record.message
        assert loader.plan(1).quarantined == loader.quarantined == (path,)
        assert sum(loader.plan().bytes_per_rank) < sum(Loader(str(root), batch_size=10).plan().bytes_per_rank)
        assert loader.stats()["quarantine"].items == 1

    def test_a_plan_borrows_no_class_from_a_shard_in_quarantine(self, copied: Callable[..., Path]) -> None:
        root = copied()
        paths = damage(root, 0, 1, 2)
        plan = Loader(str(root), batch_size=15, balance="uniform", quarantined=paths).plan()
        assert plan.missing
        assert not {missing.donor for missing in plan.missing} & set(paths)

    def test_a_plan_counts_the_substitute_shards(self, make_dataset: Make) -> None:
        url = make_dataset(1000)
        paths = [shard.path for shard in open_dataset(url).shards[:3]]
        options: dict[str, Any] = {"batch_size": 12, "streams": 4, "world_size": 4, "quarantined": paths}
        for rank in range(4):
            loader = Loader(url, rank=rank, cache="memory", **options)
            batches(loader)
            assert loader.stats()["fetch"].bytes == loader.plan().bytes_per_rank[rank]

    def test_missing_files_and_damaged_indexes_count_too(self, copied: Callable[..., Path]) -> None:
        root = copied()
        paths = damage(root, 2, suffix="index")
        missing = open_dataset(str(root)).shards[3].path
        (root / missing).unlink()
        loader = Loader(str(root), batch_size=10, on_bad_shard="quarantine")
        assert len(batches(loader)) == 100
        assert list(loader.quarantined) == [*paths, missing]

    def test_a_plan_that_needs_a_damaged_index_is_that_of_the_epoch(self, copied: Callable[..., Path]) -> None:
        root = copied()
        paths = damage(root, *range(3), suffix="index")
        options: dict[str, Any] = {"batch_size": 15, "balance": "uniform"}
        with pytest.raises(CorruptionError, match=r"\.index is damaged: its checksum"):
            Loader(str(root), **options).plan()
        loader = Loader(str(root), on_bad_shard="quarantine", **options)
        plan = loader.plan()
        assert plan.quarantined == loader.quarantined != ()
        assert not {missing.donor for missing in plan.missing} & set(plan.quarantined)
        assert plan == Loader(str(root), quarantined=plan.quarantined, on_bad_shard="quarantine", **options).plan()
        served = batches(Loader(str(root), on_bad_shard="quarantine", **options))
        assert batches(loader) == served
        assert loader.plan().quarantined == tuple(paths)

    def test_with_a_filter_on_the_label_only_its_records_are_replacements(self, copied: Callable[..., Path]) -> None:
        root = copied()
        damage(root, 1, 2)
        loader = Loader(str(root), batch_size=10, where="label == 1", on_bad_shard="quarantine")
        served = np.array(batches(loader)).reshape(-1)
        assert len(loader.quarantined) == 2
        assert ((served % 5 == 0) & (served % 50 != 0)).all()

    def test_a_single_record_of_it_is_an_error(self, copied: Callable[..., Path]) -> None:
        root = copied()
        paths = damage(root, 0)
        for loader in (
            Loader(str(root), batch_size=10, on_bad_shard="quarantine"),
            Loader(str(root), batch_size=10, quarantined=paths),
        ):
            with pytest.raises(CorruptionError, match=rf"{paths[0]} .*repair it with: shard-dataset repair {root}$"):
                loader.sample(5)

    def test_the_loader_stops_if_no_shard_is_readable(self, copied: Callable[..., Path]) -> None:
        root = copied()
        damage(root, *range(7))
        with pytest.raises(CorruptionError, match="all shards with needed records are in quarantine"):
            batches(Loader(str(root), batch_size=10, on_bad_shard="quarantine"))

    def test_a_mixture_continues_and_names_the_shard(self, make_dataset: Make, copied: Callable[..., Path]) -> None:
        root = copied()
        (path,) = damage(root, 3)
        sources = {"sound": {"url": make_dataset(1000)}, "bad": {"url": str(root), "on_bad_shard": "quarantine"}}
        mixture = Mixture(sources, batch_size=10)
        assert sum(steps for steps, _ in mixture.chunks(0)) == mixture.steps_per_epoch == 200
        assert mixture.quarantined == {"sound": (), "bad": (path,)}

    @pytest.mark.parametrize("balance", ["natural", "uniform"])
    def test_a_loader_whose_shards_are_all_in_quarantine_is_refused(self, make_dataset: Make, balance: Any) -> None:
        url = make_dataset(1000)
        shards = open_dataset(url).shards
        with pytest.raises(CorruptionError, match="all shards with needed records are in quarantine"):
            Loader(url, batch_size=10, balance=balance, quarantined=[shard.path for shard in shards])

    @pytest.mark.parametrize(
        "balance", [Ramp(start="uniform", end={0: 1.0}, epochs=2), lambda epoch: {0: 1.0} if epoch > 1 else "uniform"]
    )
    def test_a_ramp_continues_if_the_readable_shards_suffice(self, tmp_path: Path, balance: Balance) -> None:
        table = pa.table({"id": np.arange(80), "label": np.repeat([0, 1], [79, 1])})
        pq.write_table(table, tmp_path / "source.parquet")
        url = str(tmp_path / "shards")
        source = str(tmp_path / "source.parquet")
        build(BuildOptions(source=source, destination=url, label="label", shards=2, min_class_records=1))
        rare = next(shard.path for shard in open_dataset(url).shards if shard.class_counts[1])
        told = Loader(url, batch_size=4, balance=balance, quarantined=[rare])
        assert len(batches(told, 2)) == told.plan(2).steps
        with pytest.raises(CorruptionError, match="all shards with needed records are in quarantine"):
            batches(told, 0)

    def test_impossible_arguments_are_refused(self, make_dataset: Make) -> None:
        url = make_dataset(1000)
        with pytest.raises(ConfigError, match=r"has no shard 'x' in the split 'train'"):
            Loader(url, batch_size=10, quarantined=["x"])
        with pytest.raises(ConfigError, match="on_bad_shard must be 'raise' or 'quarantine', got 'skip'"):
            Loader(url, batch_size=10, on_bad_shard="skip")  # type: ignore[arg-type]
        with (
            pytest.raises(ConfigError, match="needs a `where` on the label alone"),
            mock.patch.object(Selection, "_count", side_effect=AssertionError),  # before a shard is read
        ):
            Loader(url, batch_size=10, on_bad_shard="quarantine", where="id > 5")
        Loader(url, batch_size=10, on_bad_shard="quarantine", where="label == 1")


@settings(max_examples=25)
@given(st.data())
def test_batches_depend_on_the_list_and_on_no_rank(make_dataset: Make, data: st.DataObject) -> None:
    url = make_dataset(1000)
    paths = [shard.path for shard in open_dataset(url).shards]
    quarantined = data.draw(st.lists(st.sampled_from(paths), max_size=6, unique=True))
    streams = data.draw(st.sampled_from([1, 2, 3, 4]))
    options = {
        "batch_size": 12,
        "streams": streams,
        "window_shards": data.draw(st.integers(1, 3)),
        "balance": data.draw(st.sampled_from(["natural", "uniform"])),
        "seed": data.draw(st.integers(0, 99)),
        "quarantined": quarantined,
    }
    world_size = data.draw(st.sampled_from([1, 2, 3, 4, 6]))
    loader = Loader(url, **options)
    whole = batches(loader)
    assert len(whole) == loader.steps_per_epoch
    bad = ids_of(Path(url), *(paths.index(path) for path in quarantined))
    assert not set(np.array(whole).reshape(-1).tolist()) & bad
    start = data.draw(st.integers(0, len(whole) - 1))
    ranks = [Loader(url, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    parts = [batches(ranked, start_step=start) for ranked in ranks]
    assert np.concatenate(parts, axis=1).tolist() == whole[start:]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=6), st.integers(0, 30), st.integers(0)
)
def test_replacements_keep_readable_records_in_place_and_are_spread_evenly(
    segments: list[tuple[int, bool]], lent: int, key: int
) -> None:
    lengths, bad = [length for length, _ in segments], [is_bad for _, is_bad in segments]
    kept = sum(length for length, is_bad in segments if not is_bad)
    missing = np.repeat(bad, lengths)
    if kept + lent == 0:
        return
    rows = replacement_rows(lengths, bad, lent, key)
    assert rows[~missing].tolist() == list(range(kept))
    served = np.bincount(rows[missing], minlength=kept + lent)
    assert served.max() - served.min() <= 1


class TestRewritten:
    def rebuild(self, root: Path, **options: Any) -> None:
        source = str(root.parent / "other.parquet")
        other = root.parent / "other"
        build(BuildOptions(source=source, destination=str(other), label="label", min_class_records=1, **options))
        root.rename(root.parent / "before")  # at once, for threads that read ahead may be at it
        other.rename(root)

    @pytest.mark.parametrize("on_bad_shard", ["raise", "quarantine"])
    def test_a_replaced_dataset_is_distinguished_from_damage(
        self, copied: Callable[..., Path], make_dataset: Make, on_bad_shard: Any
    ) -> None:
        root = copied()
        shutil.copy(Path(make_dataset(1000)).parent / "source.parquet", root.parent / "other.parquet")
        loader = Loader(str(root), batch_size=10, streams=1, prefetch_bytes=0, on_bad_shard=on_bad_shard)
        chunks = loader.chunks(0)
        next(chunks)
        self.rebuild(root, shards=7, seed=99)
        with pytest.raises(DatasetError, match=r"rewritten while it was read.*make a new Loader"):
            list(chunks)
        assert loader.quarantined == ()

    def test_a_removed_dataset_is_distinguished_from_damage(self, copied: Callable[..., Path]) -> None:
        root = copied()
        chunks = Loader(str(root), batch_size=10, streams=1, prefetch_bytes=0).chunks(0)
        next(chunks)
        shutil.rmtree(root)
        with pytest.raises(DatasetError, match="removed or is being rewritten"):
            list(chunks)
