"""`ringfeed tune` on a dataset behind a late web server: what it proposes is faster, and loader and trainer take it."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.pipeline import Loader
from ringfeed.pipeline.fetch.shard_cache import open_cache
from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.cli import main
from ringfeed.tools.predict.search import search
from ringfeed.tools.simulation import Setup
from ringfeed.training.config.config_file import load_config
from tests.servers.web import Behaviour, served


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tune")
    pq.write_table(pa.table({"x": np.arange(1600.0), "y": np.arange(1600) % 2}), folder / "s.parquet")
    build(BuildOptions(source=str(folder / "s.parquet"), destination=str(folder / "d"), label="y", shards=16))
    return folder / "d"


@pytest.fixture
def url(dataset: Path) -> Iterator[str]:
    with served(dataset.parent, behaviour=Behaviour(latency_seconds=0.05)) as server:
        yield f"{server}/d"


def test_what_is_proposed_was_faster_in_every_round(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, cache = tmp_path / "tuned.yaml", tmp_path / "cache"
    command = ["tune", url, "--batch-size", "32", "--seconds", "3", "--cache", str(cache), "--epochs", "10"]
    assert main([*command, "--keep-order", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] > 0  # 32 files of 50 ms, or none
    tried = found["tried"][found["chosen"]]
    assert min(tried["gains"]) > 1
    assert found["gain"] >= 1.03
    assert tried["keeps_order"]
    data, chosen = load_config(str(out)).data, found["options"]
    assert (data.url, data.batch_size) == (url, 32)
    assert (data.cache, data.cache_bytes) == (chosen.get("cache", "none"), chosen.get("cache_bytes"))
    assert any(one["options"].get("cache_bytes") for one in found["tried"])  # in a folder beside that
    options = {name: value for name, value in found["options"].items() if name not in ("cache", "cache_bytes")}
    loader = Loader(url, batch_size=32, cache=open_cache(data.cache, data.cache_bytes), **options)
    plain = Loader(url, batch_size=32)
    for one, other in zip(loader.numpy_epoch(0), plain.numpy_epoch(0), strict=True):
        assert one["x"].tolist() == other["x"].tolist()
    assert [path for path in tmp_path.iterdir() if "trial" in path.name] == []


def test_a_run_is_tuned_and_the_rest_of_its_configuration_kept(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = tmp_path / "train.yaml", tmp_path / "tuned.yaml"
    data = {"url": str(dataset), "eval_split": None}
    config.write_text(yaml.safe_dump({"data": data, "model": {"hidden": [8]}, "epochs": 2}))
    command = ["tune", "--config", str(config), "--set", "data.batch_size=64", "--seconds", "1", "--out", str(out)]
    assert main([*command, "--quiet"]) == 0
    told = capsys.readouterr().out
    tuned = load_config(str(out))
    assert (tuned.model.hidden, tuned.epochs, tuned.data.batch_size) == ((8,), 2, 64)
    assert "options simulated" in told
    kept = "keep the defaults" in told
    assert kept == (tuned.data == load_config(str(config), ["data.batch_size=64"]).data)
    assert "shards in a batch" in told


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_the_search_knows_where_the_cache_is_to_be(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bases: list[Setup] = []
    monkeypatch.setattr(
        import_module("ringfeed.tools.tune.tune"),  # the package exports a function of that name
        "search",
        lambda shape, costs, base, *rest: (bases.append(base), search(shape, costs, base, *rest))[1],
    )
    assert main(["tune", str(dataset), "--batch-size", "32", "--seconds", "1", "--cache", place, "--quiet"]) == 0
    assert [base.cache_in_memory for base in bases] == [place == "memory"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["tune"], "name a dataset by its URL, or a run by --config FILE.yaml"),
        (["tune", "d", "--config", "x.yaml"], "URL, --step and --transform are not for --config"),
        (["tune", "d", "--set", "a=1"], "--set overrides keys of a configuration; give --config, too"),
    ],
)
def test_mistakes_are_one_line(command: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 1
    assert message in capsys.readouterr().err
