"""`ringfeed profile` (tools/profile/command.py): its measurements, options and errors."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Cache, Loader, MemoryCache
from ringfeed.pipeline.fetch.disk_cache import CacheFolder
from ringfeed.pipeline.streams.shard_fetcher import ShardFetcher
from ringfeed.sharding import BuildOptions, ConfigError, build
from ringfeed.tools.cli import main
from ringfeed.tools.measure import loader_trial
from ringfeed.tools.profile import measure
from ringfeed.tools.profile import procedure as profile_module
from ringfeed.tools.report.profile_result import Profile
from ringfeed.tools.verdict.bottleneck import StageProfile, name_bottleneck
from tests.helpers.commands import Cli

profile = partial(measure.profile, seconds=0.2)  # which may not suffice for an epoch: tests that need one give `steps`
STAGES = ("fetch", "verify", "open", "plan", "gather", "deliver")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("profile")
    pq.write_table(
        pa.table({"x": [float(i) for i in range(200)], "y": [i % 2 for i in range(200)]}), folder / "s.parquet"
    )
    build(BuildOptions(source=str(folder / "s.parquet"), destination=str(folder / "d"), label="y", shards=2))
    return str(folder / "d")


def test_a_profile_counts_what_was_read(dataset: str) -> None:
    result = profile(dataset, batch_size=20, balance="uniform", steps=12)  # ten steps are an epoch
    assert (result.steps, result.samples) == (12, 240)
    by_name = {stage.name: stage for stage in result.stages}
    assert tuple(by_name) == STAGES
    assert by_name["gather"].items >= 240
    assert by_name["verify"].bytes > 200 * 8
    is_short = result.first_batch_seconds + result.seconds < 0.2  # as 12 batches are where others leave cores
    assert result.verdict.bottleneck == "unknown" or not is_short
    assert result.slowest_stage in str(result)
    assert f"<b>bottleneck: {result.verdict.bottleneck} " in result._repr_html_()


def test_located_features_are_not_blamed_on_parsing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"blob": [bytes([i]) * (8000 + i) for i in range(64)], "y": [i % 2 for i in range(64)]})
    pq.write_table(table, tmp_path / "s.parquet")
    build(BuildOptions(source=str(tmp_path / "s.parquet"), destination=str(tmp_path / "d"), label="y", shards=2))
    assert Loader(tmp_path / "d", batch_size=8).locates_features
    told: list[bool] = []

    def named(stages: tuple[StageProfile, ...], *, parses: bool) -> str:
        told.append(parses)
        return name_bottleneck(stages, parses=parses)

    monkeypatch.setattr(profile_module, "name_bottleneck", named)
    assert profile(str(tmp_path / "d"), batch_size=8, steps=64).slowest_stage != "parse"
    assert told == [False]


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_the_command_that_removes_compression_keeps_the_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_format: str
) -> None:
    pq.write_table(pa.table({"x": range(40), "y": [i % 2 for i in range(40)]}), tmp_path / "s.parquet")
    options = BuildOptions(
        source=str(tmp_path / "s.parquet"),
        destination=str(tmp_path / "d"),
        label="y",
        shards=2,
        shard_format=shard_format,
        compression="gzip",
    )
    build(options)
    monkeypatch.setattr(profile_module, "name_bottleneck", lambda stages, parses: "open")
    knob = profile(str(tmp_path / "d"), batch_size=8).loader_advice
    assert f"(shard-dataset reshard SRC DST --format {shard_format} --compression none)" in knob


@pytest.mark.parametrize(("read_share", "told"), [(0.0, "the shards come from memory"), (1.0, "the disk is the limit")])
def test_mapped_shards_read_from_a_slow_disk_are_blamed_on_the_disk(
    dataset: str, monkeypatch: pytest.MonkeyPatch, read_share: float, told: str
) -> None:
    read = chain([0, int(read_share * 1_000_000)], repeat(0))
    monkeypatch.setattr(loader_trial, "_disk_bytes", lambda: next(read))
    monkeypatch.setattr(profile_module, "name_bottleneck", lambda stages, parses: "verify")
    assert told in profile(dataset, batch_size=20).loader_advice


def test_the_rate_of_an_epoch_includes_the_wait_for_the_first_batch(
    dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = ShardFetcher.wait
    monkeypatch.setattr(ShardFetcher, "wait", lambda *given: time.sleep(0.02) or wait(*given))  # type: ignore[func-returns-value]
    result = profile(dataset, batch_size=20, steps=10, rank=1, world_size=2)
    assert result.first_batch_seconds > 0.02
    assert result.samples_per_second == pytest.approx(90 / result.seconds)
    assert result.epoch_seconds == pytest.approx(result.first_batch_seconds + result.seconds)
    assert result.epoch_samples_per_second == pytest.approx(100 / result.epoch_seconds)
    assert f"{result.epoch_samples_per_second:,.0f} samples/s: the first batch comes after" in str(result)
    assert "rank 1 of 2" in str(result)


def test_bytes_include_strings(tmp_path: Path) -> None:
    table = pa.table({"words": [["ab", "cde"]] * 64, "blob": [bytes(500)] * 64, "y": [i % 2 for i in range(64)]})
    pq.write_table(table, tmp_path / "s.parquet")
    build(BuildOptions(source=str(tmp_path / "s.parquet"), destination=str(tmp_path / "d"), label="y", shards=2))
    result = profile(str(tmp_path / "d"), batch_size=8)
    sample_bytes = len("abcde") + 500 + 8 + 4  # y, and class_id
    assert result.bytes_per_second / result.samples_per_second == pytest.approx(sample_bytes)


def test_progress_counts_seconds_from_the_start(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int, int]] = []
    monkeypatch.setattr(
        loader_trial, "stage_progress", lambda *_, **__: nullcontext(lambda *report: told.append(report))
    )
    profile(dataset, batch_size=20, steps=10, progress=True)
    assert told[:2] == [("read", 0, 10, 0), ("read", 10, 10, 200)]


def fetched_bytes(result: Profile) -> int:
    return next(stage.bytes for stage in result.stages if stage.name == "fetch")


def test_given_options_reach_the_loader_and_the_profile(dataset: str, tmp_path: Path) -> None:
    plain = profile(dataset, batch_size=20)
    assert plain.options == {}
    assert "balance natural)" in str(plain)
    given = {
        "columns": ["x"],
        "where": "x >= 100",
        "streams": 4,
        "window_shards": 2,
        "fetch_threads": 3,
        "prefetch_bytes": 0,
        "cache": str(tmp_path / "cache"),
        "cache_bytes": 1 << 20,
    }
    result = profile(dataset, batch_size=20, steps=5, **given)  # type: ignore[arg-type]
    assert result.options == given
    assert (result.steps, result.samples) == (5, 100)
    assert result.bytes_per_second / result.samples_per_second == pytest.approx(8 + 4)  # x, and class_id
    assert CacheFolder(tmp_path / "cache").limit_bytes == 1 << 20
    assert "balance natural, columns=['x'], where='x >= 100', streams=4, window_shards=2" in str(result)
    assert profile(dataset, batch_size=20, window_shards=1, cache="none").options == {}
    assert profile(dataset, batch_size=20, cache=Cache(tmp_path / "cache")).options == {"cache": given["cache"]}
    assert profile(dataset, batch_size=20, cache="memory", cache_bytes=4096).options["cache"] == "memory"
    filtered = profile(dataset, batch_size=20, steps=5, where=pc.field("y") == 1)
    assert (filtered.samples, filtered.options) == (100, {"where": "(y == 1)"})


@pytest.mark.parametrize("cache", [None, "none", MemoryCache()])
def test_cache_bytes_without_a_cache_given_by_name_is_refused(dataset: str, cache: MemoryCache | str | None) -> None:
    with pytest.raises(ConfigError, match="cache_bytes limits a cache that is given by name, got 4096 with cache="):
        profile(dataset, batch_size=20, cache=cache, cache_bytes=4096)


def test_the_command_takes_the_options_of_the_loader(
    dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["profile", dataset, "--batch-size", "20", "--seconds", "0.2", "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["options"] == {}
    flags = ["--columns", "x", "--where", "y==1", "--streams", "2", "--window-shards", "2", "--fetch-threads", "1"]
    flags += ["--prefetch-bytes", "1MiB", "--cache", str(tmp_path / "cache"), "--cache-bytes", "1MiB"]
    assert main([*command, *flags]) == 0
    assert json.loads(capsys.readouterr().out)["options"] == {
        "columns": ["x"],
        "where": "y==1",
        "streams": 2,
        "window_shards": 2,
        "fetch_threads": 1,
        "prefetch_bytes": 1 << 20,
        "cache": str(tmp_path / "cache"),
        "cache_bytes": 1 << 20,
    }
    assert main([*command, "--prefetch-bytes", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["options"] == {"prefetch_bytes": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--columns", "nope"], "columns: there is no column 'nope'; the columns here are: x, y"),
        (["--where", "x >"], "where 'x >': cannot be parsed"),
        (["--streams", "3"], "streams must divide the global batch of 20, got 3"),
        (["--cache", "s3://bucket/cache"], "cache must be the path of a folder on a local disk, got s3://bucket/cache"),
        (["--cache-bytes", "1GB"], "cache_bytes limits a cache that is given by name, got 1000000000"),
    ],
)
def test_an_error_of_the_loader_is_one_line(
    dataset: str, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["profile", dataset, "--batch-size", "20", *options]) == 1
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_the_second_profile_reads_the_cache_and_parquet_columns_are_fetched_alone(
    s3_env: dict[str, str], s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    numbers = {f"x{i}": random.normal(size=40_000) for i in range(8)}
    pq.write_table(pa.table({**numbers, "y": [i % 2 for i in range(40_000)]}), tmp_path / "s.parquet")
    url = f"s3://{s3_bucket}/{tmp_path.name}"
    build(
        BuildOptions(
            source=str(tmp_path / "s.parquet"), destination=url, label="y", shards=2, shard_format="parquet", workers=1
        )
    )
    monkeypatch.setattr(profile_module, "name_bottleneck", lambda stages, parses: "fetch")
    monkeypatch.setattr(profile_module, "try_store_of", lambda *_: None)
    epoch = 40_000 // 1024
    whole = profile(url, streams=2, steps=epoch)
    for option in ("--fetch-threads 32", "--cache FOLDER (Loader(cache='FOLDER'))", "--columns A,B"):
        assert option in whole.loader_advice
    few = profile(url, streams=2, steps=epoch, columns=["x0"])
    assert fetched_bytes(few) < fetched_bytes(whole) / 3
    cold, warm = (profile(url, streams=2, steps=epoch, columns=["x0"], cache=str(tmp_path / "cache")) for _ in range(2))
    assert (fetched_bytes(cold), fetched_bytes(warm)) == (fetched_bytes(whole), 0)
    assert "until the cache is filled" in cold.loader_advice
    assert "--cache" not in cold.loader_advice
    assert cold.samples == warm.samples == few.samples


def test_missing_values_in_unread_columns_need_no_fill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"x": range(40), "word": [None, "a"] * 20, "y": [i % 2 for i in range(40)]})
    pq.write_table(table, tmp_path / "s.parquet")
    build(BuildOptions(source=str(tmp_path / "s.parquet"), destination=str(tmp_path / "d"), label="y", shards=2))
    command = ["profile", str(tmp_path / "d"), "--batch-size", "10", "--seconds", "0.2"]
    assert main([*command, "--columns", "x"]) == 0
    assert main([*command, "--columns", "x,word"]) == 1
    assert "--fill word=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(("sig", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_terminated_profile_says_so(dataset: str, tmp_path: Path, sig: int, status: int) -> None:
    waits = "for _ in range(100):\n    time.sleep(0.05)"
    (tmp_path / "tensorflow.py").write_text(f"import time\nprint('reading', flush=True)\n{waits}")
    program = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); from ringfeed.tools.cli import main; "
    with subprocess.Popen(
        [sys.executable, "-c", program + "sys.exit(main(sys.argv[1:]))", "profile", dataset, "--batch-size", "20"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        process.send_signal(sig)
        _, stderr = process.communicate(timeout=280)
    assert (process.returncode, stderr) == (status, "ringfeed profile: interrupted\n")


def test_a_profile_of_one_step_is_refused(dataset: str) -> None:
    with pytest.raises(ConfigError, match="at least 2 steps, got 1"):
        profile(dataset, batch_size=20, steps=1)


def test_the_command_prints_one_json_document(dataset: str, installed: Cli) -> None:
    done = installed(
        "ringfeed", "profile", dataset, "--batch-size", "20", "--steps", "10", "--seconds", "0.2", "--json"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["samples"] == 200
    assert [stage["name"] for stage in document["stages"]] == list(STAGES)
    assert done.stderr == ""


def test_fill_values_and_classes_get_the_dtypes_of_their_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = range(40)
    table = pa.table(
        {
            "word": [None if i % 4 else f"{i}" for i in rows],
            "flag": [None if i % 5 else True for i in rows],
            "count": pa.array([None if i % 6 else i for i in rows], pa.int32()),
            "code": [f"{i % 2}" for i in rows],
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")
    build(BuildOptions(source=str(tmp_path / "s.parquet"), destination=str(tmp_path / "d"), label="code", shards=2))
    command = ["profile", str(tmp_path / "d"), "--batch-size", "10", "--seconds", "0.2", "--json"]
    command += ["--balance", '{"0": 0.3, "1": 0.7}']
    assert main(command) == 1
    assert json.loads(capsys.readouterr().err) == {
        "event": "error",
        "message": "feature 'word' has 30 missing values and feature 'flag' has 32 missing values and feature 'count' "
        "has 33 missing values in split 'train'; choose a value to replace them: "
        "--fill word=VALUE --fill flag=VALUE --fill count=VALUE",
        "status": 1,
    }
    fill = ["--fill", "word=7", "--fill", "flag=true", "--fill", "count=-1"]
    assert main([*command, *fill]) == 0
    assert json.loads(capsys.readouterr().out)["balance"] == {"0": 0.3, "1": 0.7}
    assert main([*command, *fill, "--fill", "flag=7"]) == 1
    assert "fill of feature 'flag' must be one bool value, got '7'" in capsys.readouterr().err
    assert main([*command, *fill, "--balance", '{"0": "x"}']) == 1
    assert "the share of '0' in balance must be a number, got 'x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "val"], "there is no split 'val'; the dataset has 'train'"),
        (["--balance", "{nonsense"], "--balance takes a word or JSON"),
        (["--fill", "x"], "--fill takes FEATURE=VALUE, got 'x'"),
        (["--rank", "3"], "rank must lie in"),  # found after the import of TensorFlow
        (["--batch-size", "500"], "batch_size=500 is more than the 200 records of 'train'; use at most 200"),
    ],
)
def test_a_mistake_is_one_line(
    dataset: str, capfd: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["profile", dataset, "--batch-size", "20", *options]) == 1
    errors = capfd.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
