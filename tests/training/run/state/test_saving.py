"""Runs that share a folder of checkpoints by mistake, and runs that resume in it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.tools.cli import main
from ringfeed.training import Checkpoint, CheckpointStore
from ringfeed.training.config.config_file import load_config, parse_config
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.state.saving import Saver
from ringfeed.training.run.stopping import Stopped
from ringfeed.training.run.trainer import Trainer
from tests.helpers.checkpoints import saved_steps
from tests.helpers.thread_ring import ThreadRing, on_ranks
from tests.servers.store import Store

WriteConfig = Callable[..., Path]
_FAST = ("deterministic=false",)


@pytest.fixture
def sweep(write_config: WriteConfig, store: Store, tmp_path: Path) -> Path:
    """A run whose best evaluation is not its last, with checkpoints in a store."""
    return write_config(
        data={"batch_size": 600, "eval_split": "test"},
        model={"hidden": [4], "norm": "none", "dropout": 0.0},
        optimizer={"name": "sgd", "learning_rate": 0.5, "momentum": 0.9},
        schedule={"warmup_epochs": 0},
        epochs=4,
        checkpoint={"url": store.url, "keep": 1, "best": 1, "every_steps": 2},
        output={"model": str(tmp_path / "model.keras"), "weights": "best"},
    )


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, when it saves a model
@pytest.mark.parametrize("store", ["local", "s3"], indirect=True)
def test_a_second_run_is_refused_and_the_first_is_undisturbed(
    sweep: Path, store: Store, flights: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seconds = iter([("seed=5",), ("optimizer.learning_rate=0.1",), (), ("checkpoint.resume=false",)])
    calls = iter(range(10**6))

    def start_another() -> bool:
        if next(calls) in (0, 3, 9, 11):  # before the first checkpoint, and later
            capfd.readouterr()
            words = [word for item in (*_FAST, *next(seconds)) for word in ("--set", item)]
            assert main(["train", "--config", str(sweep), *words, "--quiet"]) == 1
            lines = capfd.readouterr().err.splitlines()
            assert len(lines) == 1
            assert "another run is writing to " in lines[0]
            assert "(process " in lines[0]
            assert lines[0].endswith("; wait for it, or stop it first, or set another checkpoint.url")
        return False

    metrics = Trainer(load_config(str(sweep), _FAST), SoloRing(), start_another).run()
    assert next(seconds, None) is None
    assert metrics["best"]["step"] < metrics["total_steps"]
    assert [name for name in store.list() if not name.startswith("step-")] == []
    newest = CheckpointStore(store.url).newest()
    assert newest is not None
    assert newest.step == metrics["total_steps"]

    out = str(tmp_path / "predictions")
    command = ["predict", str(tmp_path / "model.keras"), flights, "--split", "test", "--out", out, "--keep", "late"]
    assert main([*command, "--quiet"]) == 0
    rows = pyarrow.dataset.dataset(out, format="parquet", exclude_invalid_files=True).to_table().to_pydict()
    picked = [scores[label == "on time"] for scores, label in zip(rows["scores"], rows["late"], strict=True)]
    assert -np.log(picked).mean() == pytest.approx(metrics["best"]["loss"], rel=1e-4)


@pytest.mark.parametrize("store", ["local"], indirect=True)
def test_all_checkpoints_of_a_run_and_of_those_that_resume_it_have_one_id(sweep: Path, store: Store) -> None:
    def runs_after(step: int) -> set[str]:
        calls = iter(range(10**6))
        first = max(saved_steps(Path(store.url)), default=0)
        with pytest.raises(Stopped):
            Trainer(load_config(str(sweep), _FAST), SoloRing(), lambda: next(calls) >= step - first).run()
        return {name.split("-")[2] for name in store.list()}

    (run,) = runs_after(3)
    assert len(run) == 16
    assert runs_after(7) == {run}
    assert CheckpointStore(store.url).newest().run == run  # type: ignore[union-attr]
    folder = CheckpointStore(store.url, keep=9)
    for path in sorted(Path(store.url).iterdir()):  # as an earlier version wrote them
        checkpoint = folder._read(path.name)
        path.unlink()
        folder.save(replace(checkpoint, run=""))
    names = runs_after(12)
    assert len(names) == 1
    assert run not in names


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("store", ["local"], indirect=True)
def test_another_run_that_came_first_is_named_and_keeps_its_checkpoints(sweep: Path, store: Store) -> None:
    """One whose first checkpoint came after this run had looked for one."""
    late = Trainer(load_config(str(sweep), _FAST), SoloRing())
    Trainer(load_config(str(sweep), [*_FAST, "seed=1"]), SoloRing()).run()
    before = {name: store.read_bytes(name) for name in store.list()}
    with pytest.raises(ConfigError, match=r"holds checkpoints of another run \([0-9a-f]{16}\): set another checkpoint"):
        late.run()
    assert {name: store.read_bytes(name) for name in store.list()} == before
    assert all(name.startswith("step-") for name in before)


def test_a_folder_that_another_rank_does_not_see_is_named_and_refused_if_its_own_is_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared, own = str(tmp_path / "shared"), str(tmp_path / "own")

    def start(ring: ThreadRing, url: str) -> None:
        tree = {"data": {"url": "data", "batch_size": 2}, "epochs": 1, "checkpoint": {"url": url}}
        saver = Saver(parse_config(tree, "test"), ring, None, None, "0" * 16)  # type: ignore[arg-type]
        with saver.hold(is_over=False):
            ring.barrier()
            saver.check_folder(7)

    def start_apart(ring: ThreadRing) -> None:
        start(ring, own if ring.rank == 2 else shared)

    on_ranks(3, lambda ring: start(ring, shared))
    assert caplog.text == ""
    on_ranks(3, start_apart)
    here = socket.gethostname()
    assert f"only {here} sees {shared}, not {here}: a run that starts elsewhere finds no checkpoint" in caplog.text
    CheckpointStore(own).save(Checkpoint(step=7, arrays={"weights": np.zeros(2)}, run="0" * 16))
    on_ranks(3, start_apart)
    CheckpointStore(own).save(Checkpoint(step=8, arrays={"weights": np.zeros(2)}, run="0" * 16))
    with pytest.raises(TrainingError, match=r"is another folder on .*, with .* of step 8, .* at step 7: copy"):
        on_ranks(3, start_apart)


@pytest.mark.parametrize("kind", ["touched", "moved", "other records", "other types"])
def test_a_run_knows_its_records_however_they_were_found(
    tmp_path: Path, write_config: WriteConfig, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    rng = np.random.default_rng(1)
    table = {"x": rng.normal(size=600).astype(np.float32), "n": rng.integers(0, 9, 600), "y": ["a", "b", "c"] * 200}
    source, data, run = tmp_path / "a.parquet", tmp_path / "data", tmp_path / "run"

    def build_of(path: Path) -> dict[str, bytes]:
        pq.write_table(pa.table(table), path)
        options = BuildOptions(source=str(path), destination=str(data), label="y", shards=2, seed=3)
        build(replace(options, splits={"train": Fraction(1)}))
        return {file.name: file.read_bytes() for file in data.glob("*.tfrecord*")}

    first = build_of(source)
    config = load_config(
        str(
            write_config(
                data={"url": str(data), "batch_size": 60, "categorical": [], "eval_split": None},
                model={"hidden": [4], "norm": "none", "dropout": 0.0},
                checkpoint={"url": str(run), "every_steps": 2},
                output={"metrics": None},
            )
        ),
        _FAST,
    )
    calls = iter(range(10**6))
    with pytest.raises(Stopped):
        Trainer(config, SoloRing(), lambda: next(calls) >= 5).run()
    shutil.rmtree(data)
    if kind == "other records":
        table["x"][7] = 3.0
    elif kind == "other types":
        table["n"] = table["n"].astype(np.int32)
    again = build_of(tmp_path / "b.parquet" if kind == "moved" else source)
    command = ["export", str(run), "--out", str(tmp_path / "model.keras"), "--quiet"]
    if kind.startswith("other"):
        with pytest.raises(TrainingError, match="are of a run with different the dataset's shards: undo the change"):
            Trainer(config, SoloRing()).run()
        assert main(command) == 1
        assert "is not, or no longer, that of the checkpoints" in capfd.readouterr().err
        return
    assert again == first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Keras, when it saves a model
        assert main(command) == 0
    assert Trainer(config, SoloRing()).run()["resumed_from_step"] >= 5


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("store", ["local"], indirect=True)
def test_what_a_run_left_that_was_killed_after_its_last_step_is_removed(sweep: Path, store: Store) -> None:
    config = load_config(str(sweep), [*_FAST, "max_steps=2"])
    Trainer(config, SoloRing()).run()
    done = store.list()
    killed = "from ringfeed.sharding.storage.lease import hold_lease as h\nfrom ringfeed.sharding import Storage as S\n"
    killed += "import os, sys\nh(S(sys.argv[1]), {}, '_training.json').__enter__()\nos.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed, store.url], check=False)
    assert store.list() == ["_training.json", *done]
    Trainer(config, SoloRing()).run()
    assert store.list() == done
