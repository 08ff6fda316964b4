"""`import ringfeed`: the names that most programs need, imported when they are used.

Each test runs a program with a folder of links, as an installation has one: a checkout's environment may be older.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringfeed.sharding import ConfigError
from ringfeed.training.run.train import train
from tests.helpers.import_graph import LAYERS, ROOT
from tests.helpers.lean import lean_environment


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the package `ringfeed`."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "ringfeed").mkdir()
    for path in [*(ROOT / "package").iterdir(), *(ROOT / layer for layer in LAYERS)]:
        (folder / "ringfeed" / path.name).symlink_to(path)
    return folder


def run(installed: Path, code: str, cwd: Path) -> str:
    environment = lean_environment({"TF_CPP_MIN_LOG_LEVEL": "3"})
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"].split(os.pathsep)[0], str(installed)])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=280
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_importing_is_cheap_and_names_what_it_offers(installed: Path, tmp_path: Path) -> None:
    code = """
import sys, ringfeed
print(*sorted({name.split(".")[0] for name in sys.modules}))
import ringfeed.sharding
print(*sorted({name.split(".")[0] for name in sys.modules}))
print(*sorted(dir(ringfeed)))
print(ringfeed.__version__)
print(ringfeed.__doc__)
"""
    first, then, names, version, *doc = run(installed, code, tmp_path).splitlines()
    assert not {"numpy", "pyarrow", "tensorflow"} & set(first.split())
    assert not {"tensorflow", "keras", "horovod"} & set(then.split())
    assert {"Loader", "Mixture", "build", "open_dataset", "open_trained", "train"} <= set(names.split())
    assert version[0].isdigit()
    assert doc[0].startswith("Balanced shards in")


def test_the_names_are_those_of_the_packages(installed: Path, tmp_path: Path) -> None:
    """A run through all of them: records in memory, a dataset, batches, a model, a prediction."""
    code = """
import ringfeed
rows = [{"x": i % 7, "kind": "ab"[i % 7 > 3]} for i in range(200)]
ringfeed.build(source=rows, destination="data", label="kind", split={"train": 0.8, "test": 0.2}, format="parquet")
print(ringfeed.open_dataset("data").manifest.shard_format)
print(len(ringfeed.Loader("data", split="train", batch_size=32)))
config = {"data": {"url": "data", "batch_size": 32}, "model": {"hidden": [4]}, "output": {"model": "m.keras"}}
metrics = ringfeed.train(config)
print(metrics["final"]["samples"], ringfeed.open_trained("m.keras")({"x": 3})["predicted"].to_pylist())
try:
    ringfeed.bild
except AttributeError as error:
    print(error)
if True:
    from ringfeed import sharding, pipeline, training, tools
"""
    shards, steps, trained, error = run(installed, code, tmp_path).splitlines()
    assert (shards, steps) == ("parquet", "5")
    assert trained in ("40 ['a']", "40 ['b']")
    assert "bild" in error


def test_the_stub_names_what_is_offered() -> None:
    tree = ast.parse((ROOT / "package/__init__.pyi").read_text())
    imported = {name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
    (names,) = (ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    assert imported == set(names)


def test_mistakes_are_refused_before_a_run() -> None:
    with pytest.raises(ConfigError, match="did you mean 'data'"):
        train({"dta": {"url": "data"}})
    with pytest.raises(ConfigError, match="overrides are for a configuration file"):
        train({"data": {"url": "data"}}, ["epochs=2"])
