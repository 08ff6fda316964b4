"""The bottleneck of a loader, and the knob that is suggested for it."""

import argparse
import ast
import inspect
import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.pipeline import Loader, StageStats
from ringfeed.sharding import BuildOptions, build, open_dataset
from ringfeed.tools.measure.store_trial import StoreTrial
from ringfeed.tools.profile.command import add_arguments
from ringfeed.tools.profile.measure import profile
from ringfeed.tools.shard_dataset import program as shard_dataset
from ringfeed.tools.verdict.bottleneck import StageProfile, name_bottleneck, name_knob
from tests.servers.web import served

STAGES = ("fetch", "verify", "open", "plan", "gather", "deliver")
OPTION = re.compile(r"(--[a-z-]+) (\S+) \(Loader\((\w+)=(.*?)\)\)")


def knob_text(*given: Any) -> str:
    return name_knob(*given).text


def stages(**seconds: tuple[float, ...]) -> tuple[StageProfile, ...]:
    made = []
    for name in STAGES:
        busy, wait, *work = seconds.get(name, (0.0, 0.0))
        made.append(
            StageProfile(
                name=name, items=1, bytes=0, busy_seconds=busy, work_seconds=work[0] if work else busy,
                wait_seconds=wait, share=busy,
            )
        )  # fmt: skip
    return tuple(made)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (stages(fetch=(9.0, 0.0), open=(1.0, 0.0), gather=(0.5, 4.0)), "fetch"),
        (stages(fetch=(0.1, 0.0), open=(3.0, 0.0), gather=(0.5, 4.0)), "open"),
        (stages(verify=(5.0, 0.0), gather=(0.5, 4.0)), "verify"),
        (
            stages(fetch=(9.0, 0.0, 0.5), verify=(7.0, 0.0, 2.0), gather=(0.5, 4.0)),
            "verify",
        ),  # fetches wait for the lock
        (stages(plan=(5.0, 0.0), gather=(0.5, 4.0)), "plan"),
        (stages(gather=(3.0, 0.1), fetch=(1.0, 0.0)), "gather"),
        (stages(gather=(1.0, 0.1), deliver=(0.0, 5.0)), "deliver"),
        (stages(fetch=(0.1, 0.0), open=(0.2, 0.0), gather=(0.1, 1.0)), "none"),  # the epoch's start, in few tiny shards
    ],
)
def test_the_bottleneck_is_the_stage_that_the_others_wait_for(
    measured: tuple[StageProfile, ...], expected: str
) -> None:
    assert name_bottleneck(measured, parses=False) == expected


def test_delivery_that_waits_for_parsing_names_parse() -> None:
    assert name_bottleneck(stages(gather=(1.0, 0.1), deliver=(0.0, 5.0)), parses=True) == "parse"


@pytest.mark.parametrize(
    ("name", "counted", "from_disk", "store_bandwidth", "expected"),
    [
        ("fetch", {"busy_seconds": 9.0, "cpu_seconds": 1.0}, False, None, 1.0),  # all from memory
        ("fetch", {"busy_seconds": 9.0, "cpu_seconds": 1.0, "wait_seconds": 6.0}, False, None, 7.0),  # some from NFS
        ("fetch", {"busy_seconds": 9.0, "cpu_seconds": 1.0}, True, None, 9.0),
        ("verify", {"busy_seconds": 9.0, "cpu_seconds": 1.0}, True, None, 9.0),  # pages of mapped files
        ("verify", {"busy_seconds": 9.0, "cpu_seconds": 1.0, "wait_seconds": 6.0}, False, None, 1.0),
        ("fill", {"busy_seconds": 9.0, "cpu_seconds": 1.0}, False, None, 9.0),  # writes
        ("fetch", {"busy_seconds": 9.0, "cpu_seconds": 0.0, "wait_seconds": 9.0}, False, 300.0, 9.0),
        ("fetch", {"busy_seconds": 9.0, "cpu_seconds": 1.0, "wait_seconds": 9.0}, False, 3000.0, 2.0),
    ],
)
def test_a_wait_for_a_core_or_the_lock_is_no_work(
    name: str, counted: dict[str, float], from_disk: bool, store_bandwidth: float | None, expected: float
) -> None:
    """3 threads read 1,000 bytes; alone, the store gives them in 10 s of threads, or in 1 s."""
    store = None
    if store_bandwidth is not None:
        store = StoreTrial(latency_seconds=0.0, bytes_per_second={1: store_bandwidth}, sizes={}, read_seconds=())
    stats = StageStats(items=4, bytes=1000, **counted)  # type: ignore[arg-type]
    assert StageProfile.of(name, stats, 3.0, from_disk=from_disk, store=store).work_seconds == pytest.approx(expected)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Datasets by shard format; gzip is TFRecord."""
    folder: Path = tmp_path_factory.mktemp("knobs")
    pq.write_table(pa.table({"A": range(40), "B": range(40), "y": [i % 2 for i in range(40)]}), folder / "s.parquet")
    for name in ("tfrecord", "parquet", "gzip"):
        options = BuildOptions(
            source=str(folder / "s.parquet"),
            destination=str(folder / name),
            label="y",
            shards=2,
            shard_format="tfrecord" if name == "gzip" else name,
            compression="gzip" if name == "gzip" else "none",
        )
        build(options)
    return {name: str(folder / name) for name in ("tfrecord", "parquet", "gzip")}


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_options_in_a_knob_are_those_of_the_command_and_the_loader(datasets: dict[str, str], shard_format: str) -> None:
    loader = Loader(datasets[shard_format], batch_size=8, streams=2)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    named: set[str] = set()
    for bottleneck in (*STAGES, "cache", "fill", "parse"):
        for flag, word, name, value in OPTION.findall(knob_text(bottleneck, stages(), loader, 0)):
            args = vars(parser.parse_args(["URL", flag, word]))
            literal = ast.literal_eval(value)
            assert args[name] == (tuple(literal) if isinstance(literal, list) else literal)
            assert {name} <= inspect.signature(Loader).parameters.keys() & inspect.signature(profile).parameters.keys()
            named.add(name)
    assert named == {"fetch_threads", "cache", "columns", "window_shards", "batch_size"}


def test_a_knob_doubles_the_given_options(datasets: dict[str, str]) -> None:
    loader = Loader(datasets["tfrecord"], batch_size=8, fetch_threads=3, window_shards=2)
    assert "--fetch-threads 6 (Loader(fetch_threads=6))" in knob_text("fetch", stages(), loader, 0)
    assert "--window-shards 4 (Loader(window_shards=4))" in knob_text("plan", stages(), loader, 0)
    assert "--batch-size 16 (Loader(batch_size=16))" in knob_text("deliver", stages(), loader, 0)


def test_with_too_little_prefetched_a_knob_does_not_suggest_more_threads(datasets: dict[str, str]) -> None:
    def told(fetching: float, **options: int) -> str:
        loader = Loader(datasets["tfrecord"], batch_size=8, **options)
        return knob_text("fetch", stages(fetch=(fetching, 0.0)), loader, 0)

    assert "--prefetch-bytes 67108864 (Loader(prefetch_bytes=67108864))" in told(1.1, prefetch_bytes=0)
    assert "--prefetch-bytes 134217730 " in told(2.9, prefetch_bytes=67108865, fetch_threads=6)
    assert "--fetch-threads" not in told(1.1, prefetch_bytes=0)
    assert "--fetch-threads 12 " in told(3.1, prefetch_bytes=67108865, fetch_threads=6)  # these have enough to do
    assert "--fetch-threads 8 " in told(1.1)


def test_fewer_columns_are_suggested_for_fetching_parquet_without_a_cache(
    datasets: dict[str, str],
) -> None:
    told = {
        (shard_format, cache): knob_text("fetch", stages(), Loader(url, batch_size=8, cache=cache), 0)
        for shard_format, url in datasets.items()
        for cache in (None, "memory")
    }
    assert [key for key, knob in told.items() if "--columns" in knob] == [("parquet", None)]
    assert all(("until the cache is filled" in knob) is (cache is not None) for (_, cache), knob in told.items())
    assert "--columns" not in knob_text("fetch", stages(), Loader(datasets["parquet"], batch_size=8, columns=["A"]), 0)
    assert not any("--cache" in knob for knob in told.values())  # a local dataset needs none


def test_the_commands_in_a_knob_work(datasets: dict[str, str], tmp_path: Path) -> None:
    build(BuildOptions(source=datasets["tfrecord"], destination=str(tmp_path / "d"), splits={"a": "0.5", "b": "0.5"}))
    for url, options in ((str(tmp_path / "d"), {"split": "a"}), (datasets["parquet"], {})):
        loader = Loader(url, batch_size=8, **options)
        for bottleneck in ("fetch", "parse"):
            (command,) = re.findall(r"\(shard-dataset (.*?)\)", knob_text(bottleneck, stages(), loader, 0))
            destination = str(tmp_path / f"{loader.manifest.shard_format}-{bottleneck}")
            assert shard_dataset.main(command.replace("SRC", url).replace("DST", destination).split()) == 0
            written = open_dataset(destination).manifest
            assert written.splits.keys() == loader.manifest.splits.keys()
            assert written.compression == "gzip" if bottleneck == "fetch" else written.shard_format == "parquet"


def test_compression_is_not_suggested_for_compressed_shards(datasets: dict[str, str]) -> None:
    told = knob_text("fetch", stages(), Loader(datasets["gzip"], batch_size=8), 0)
    assert "compress" not in told
    assert "where that is no faster the disk gives no more: put the shards on a faster one" in told


def test_compression_is_not_suggested_for_images(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.new("RGB", (8, 8)).save(content, "jpeg")
    for number in range(8):
        (tmp_path / "s" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / str(number % 2) / f"{number}.jpg").write_bytes(content.getvalue())
    build(BuildOptions(source=str(tmp_path / "s"), destination=str(tmp_path / "d"), shards=2, min_class_records=1))
    assert "compress" not in knob_text("fetch", stages(), Loader(str(tmp_path / "d"), batch_size=4), 0)


def test_only_a_remote_store_has_a_link(datasets: dict[str, str]) -> None:
    with served(Path(datasets["gzip"])) as url:
        told = knob_text("fetch", stages(), Loader(url, batch_size=8), 0)
    assert told.endswith("bring the data nearer")
    assert "where that is no faster the link is full: keep what is read again on a local disk, --cache FOLDER " in told


def test_larger_shards_are_suggested_for_many_small_ones(datasets: dict[str, str], tmp_path: Path) -> None:
    build(BuildOptions(source=datasets["parquet"], destination=str(tmp_path / "d"), shards=40, shard_format="parquet"))
    loader = Loader(str(tmp_path / "d"), batch_size=8)
    for bottleneck in ("open", "fetch"):
        told = knob_text(bottleneck, stages(), loader, 0)
        (command,) = re.findall(r"is the limit: write larger shards, .*? KiB each \(shard-dataset (.*?)\)", told)
        destination = str(tmp_path / bottleneck)
        words = command.replace("SRC", str(tmp_path / "d")).replace("DST", destination).split()
        assert shard_dataset.main(words) == 0
        fewer = Loader(destination, batch_size=8)
        assert fewer.manifest.split("train").shards == 4
        assert "larger shards" not in knob_text(bottleneck, stages(), fewer, 0)
    picked = Loader(str(tmp_path / "d"), batch_size=8, where="A < 20")  # whose plan reads a part of the shards
    assert "larger shards" not in knob_text("open", stages(), picked, 0)


def test_a_knob_suggests_neither_what_was_done_nor_what_is_impossible(datasets: dict[str, str]) -> None:
    def told(bottleneck: str, *, kind: str = "tfrecord", disk_bytes: int = 0, **options: Any) -> str:
        came = StageProfile(
            name=bottleneck, items=9, bytes=1000, busy_seconds=1.0, work_seconds=1.0, wait_seconds=0.0, share=3.0
        )
        return knob_text(bottleneck, (came,), Loader(datasets[kind], batch_size=32, **options), disk_bytes)

    assert "--columns" in told("open")
    assert "--columns" not in told("open", columns=["A"])
    assert "--batch-size 40 " in told("deliver")  # all there are
    assert "--batch-size 36 " in told("deliver", where="A < 36")
    assert "classes" in told("plan", balance="uniform")
    assert "classes" not in told("plan")
    assert "compress" in told("verify", disk_bytes=900)
    assert "compress" not in told("verify", kind="gzip", disk_bytes=900)
    assert "compress" in told("fetch", disk_bytes=900)
    assert told("fetch", disk_bytes=100).startswith("opening files is the limit")
    assert "compress" not in told("fetch", disk_bytes=100)


def test_a_knob_suggests_to_leave_a_given_number_of_threads_out(datasets: dict[str, str]) -> None:
    told = {
        n: knob_text("fetch", stages(), Loader(datasets["gzip"], batch_size=8, fetch_threads=n), 0) for n in (None, 1)
    }
    assert "(Loader(fetch_threads=2)), or leave that out; where" in told[1]
    assert "leave that out" not in told[None]


def test_a_loader_whose_cache_has_all_shards_fetches_nothing(datasets: dict[str, str]) -> None:
    store = StoreTrial(latency_seconds=0.01, bytes_per_second={1: 1e6}, sizes={}, read_seconds=())
    warm = stages(cache=(1.0, 0.0), gather=(0.1, 1.0))
    told = name_knob("gather", warm, Loader(datasets["tfrecord"], batch_size=8, cache="memory"), 0, store)
    assert told.limit == "hand_over"
