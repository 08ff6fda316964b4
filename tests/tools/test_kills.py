"""Commands that write, killed by SIGKILL at random moments: run again, each ends as if nobody had killed it.

The same files with the same content, and nothing beside them. `pytest -m campaign` kills each at 30 moments, on disk
and S3, on 1 to 3 ranks.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.storage.storage import Storage
from ringfeed.training.checkpoint.store import decode
from tests.helpers import forks
from tests.helpers.lean import lean_environment
from tests.servers.store import Store
from tests.sharding.conftest import is_trial

_TIMEOUT_SECONDS = 240.0
_BIN = Path(sys.executable).parent


@dataclass(frozen=True, kw_only=True)
class Lab:
    """What all commands read."""

    folder: Path

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    @property
    def model(self) -> str:
        return str(self.folder / "model.keras")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command.

    Attributes:
        words: the command, from the lab and the URL that it writes to.
        ranks: numbers of ranks; 0: no launcher.
        is_exact: whether two undisturbed runs end with the same content.
        appends: whether it adds to a dataset, so that it may not be run again once it has ended.
    """

    words: Callable[[Lab, str], list[str]]
    ranks: tuple[int, ...] = (0,)
    is_exact: bool = True
    appends: bool = False


def _train(lab: Lab, out: str) -> list[str]:
    files = {"checkpoint.url": "run", "output.model": "model.keras", "output.metrics": "metrics.json"}
    sets = [word for key, name in files.items() for word in ("--set", f"{key}={out}/{name}")]
    return ["train", "--config", str(lab.folder / "run.yaml"), "-q", *sets]


def _on_servers(lab: Lab, out: str) -> list[str]:
    return [*_train(lab, out), "--set", "backend=parameter_server", "--set", "deterministic=false"]


_BUILD = ["--label", "y", "--shards", "6", "--workers", "2", "--split", "train=0.8,test=0.2"]
CASES = {
    "build": Case(words=lambda lab, out: ["build", str(lab.folder / "a.parquet"), f"{out}/d", *_BUILD, "--dali-index"]),
    "append": Case(words=lambda lab, out: ["append", str(lab.folder / "b.parquet"), f"{out}/d"], appends=True),
    "reshard": Case(words=lambda lab, out: ["reshard", lab.data, f"{out}/d", "--shards", "3", "--format", "parquet"]),
    "webdataset": Case(words=lambda lab, out: ["export", lab.data, f"{out}/d", "--to", "webdataset"]),
    "train": Case(words=_train, ranks=(0, 2, 3)),
    "predict": Case(
        words=lambda lab, out: ["predict", lab.model, lab.data, "--split", "train", "--out", f"{out}/p", "-q"],
        ranks=(0, 2, 3),
    ),
    "saved_model": Case(words=lambda lab, out: ["export", lab.model, "--out", f"{out}/served", "-q"]),
    "keras": Case(words=lambda lab, out: ["export", lab.model, "--out", f"{out}/again.keras", "-q"]),
    "servers": Case(words=_on_servers, ranks=(-2,), is_exact=False),
    "tune": Case(
        words=lambda lab, out: [
            "tune", lab.data, "--split", "train", "--batch-size", "64", "--seconds", "0.5", "-q", "--out",
            f"{out}/tuned.yaml",
        ],
        is_exact=False,
    ),
}  # fmt: skip
_OF_SHARDS = ("build", "append", "reshard", "webdataset")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder: Path = tmp_path_factory.mktemp("lab")
    for seed, name in enumerate("ab"):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=4000).astype(np.float32)
        rows = {"x": x, "n": rng.integers(0, 9, 4000), "y": np.where(x > 0.3, "p", "q")}
        pq.write_table(pa.table(rows), folder / f"{name}.parquet", row_group_size=500)
    options = BuildOptions(source=str(folder / "a.parquet"), destination=str(folder / "data"), label="y", shards=6)
    build(replace(options, splits={"train": Fraction(4, 5), "test": Fraction(1, 5)}))
    tree = {
        "data": {"url": str(folder / "data"), "batch_size": 160},
        "model": {"hidden": [8]},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "epochs": 2,
        "checkpoint": {"every_steps": 4, "keep": 2},
        "output": {"log_every": 10},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    return Lab(folder=folder)


@dataclass(kw_only=True)
class Runner:
    """Starts commands, kills them, and sees what they leave."""

    lab: Lab
    temporary: Path
    forker: subprocess.Popen[str]
    environ: dict[str, str] = field(default_factory=dict)

    def run(self, case: Case, out: str, ranks: int, random_kill: random.Random | None, seconds: float) -> int:
        """Run a command to its end, or kill it at a random moment; return its status."""
        words = case.words(self.lab, out)
        if words[0] in ("train", "predict", "tune") or (words[0] == "export" and "--to" not in words):
            if not ranks:
                return self._forked(words, out, random_kill, seconds)
            how = ["launch", "-n", str(ranks)] if ranks > 0 else ["launch", "--ps", "1", "--workers", str(-ranks)]
            words = [str(_BIN / "ringfeed"), *how, *words]
        else:
            words = [str(_BIN / "shard-dataset"), *words]
        with (self.lab.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                words, env={**lean_environment(), **self.environ}, stdout=log, stderr=log, start_new_session=True
            )
        if random_kill is not None:
            self._kill(process.pid, random_kill, seconds, is_over=lambda: process.poll() is not None)
        status = process.wait(_TIMEOUT_SECONDS)
        _await_group(process.pid)
        return status

    def _kill(self, pid: int, rng: random.Random, seconds: float, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + rng.uniform(0.0, seconds)
        while time.monotonic() < deadline and not is_over():
            time.sleep(0.002)
        try:
            if rng.random() < 0.5:
                os.kill(pid, signal.SIGKILL)  # its ranks and workers end with it
            else:
                os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _forked(self, words: list[str], out: str, rng: random.Random | None, seconds: float) -> int:
        order: dict[str, Any] = {"words": words, "environ": self.environ, "log": str(self.lab.folder / "log")}
        if by_call := rng is not None and "://" not in out and rng.random() < 0.5:
            order |= {"die_at": rng.randrange(1, 120), "mark": out}
        assert self.forker.stdin is not None
        assert self.forker.stdout is not None
        self.forker.stdin.write(json.dumps(order) + "\n")
        self.forker.stdin.flush()
        pid = int(self.forker.stdout.readline())
        if rng is not None and not by_call:
            self._kill(pid, rng, seconds, is_over=lambda: not Path(f"/proc/{pid}").exists())
        return int(self.forker.stdout.readline())


def _await_group(group: int) -> None:
    """Wait until all processes of a group have ended, as ranks do soon after their launcher."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError(f"processes of group {group} still run")


@pytest.fixture(scope="module")
def runner(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    temporary: Path = tmp_path_factory.mktemp("tmp")
    environ = lean_environment({"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""})
    forker = subprocess.Popen(
        [sys.executable, forks.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )
    runner = Runner(lab=lab, temporary=temporary, forker=forker, environ={"TMPDIR": str(temporary)})
    assert runner.run(CASES["train"], str(lab.folder / "first"), 0, None, 0) == 0, (lab.folder / "log").read_text()
    shutil.copy(lab.folder / "first" / "model.keras", lab.model)
    yield runner
    assert forker.stdin is not None
    assert forker.stdout is not None
    forker.stdin.close()
    forker.wait(60)
    forker.stdout.close()


def content(name: str, data: bytes) -> tuple[str, Any]:
    """What a file says, without times and random names: what two undisturbed runs agree on."""
    if match := re.fullmatch(r"(.*/step-\d+)-.*\.safetensors", name):
        checkpoint = decode(data)
        arrays = {key: array.tobytes() for key, array in checkpoint.arrays.items()}
        return match[1], (arrays, checkpoint.state["position"], checkpoint.state["loader"])
    if name.endswith(".keras"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
                keys: list[str] = []
                file.visit(keys.append)
                weights = {key: file[key][()].tobytes() for key in keys if isinstance(file[key], h5py.Dataset)}
            return name, (sorted(archive.namelist()), weights)
    if name.endswith("metrics.json"):
        metrics = json.loads(data)
        return name, [metrics[key] for key in ("final", "weights_digest", "total_steps")]
    if name.endswith(("saved_model.pb", "fingerprint.pb", "variables.index")):
        return name, None  # TensorFlow puts random numbers in
    return name, data


def found(store: Store, out: str) -> dict[str, Any]:
    """The content of all files below a folder of a store, and the names of its folders on a disk."""
    prefix = out.removeprefix(f"{store.url}/")
    files = dict(content(name, store.read_bytes(name)) for name in store.list() if name.startswith(f"{prefix}/"))
    if store.name == "local":
        files |= {f"{path.relative_to(store.url)}/": None for path in Path(out).rglob("*") if path.is_dir()}
    return {name.removeprefix(prefix): value for name, value in files.items()}


def prepare(case: Case, lab: Lab, store: Store, out: str) -> None:
    if case.appends:
        fs, root = fsspec.core.url_to_fs(f"{out}/d", **store.storage_options)
        fs.put(f"{lab.data}/", f"{root}/", recursive=True)


def kill_and_run(runner: Runner, store: Store, name: str, kills: int, ranks: int, seed: int) -> int:
    """Kill a command so many times at random moments, in threes, and let it end each time; return the kills."""
    case, lab, rng = CASES[name], runner.lab, random.Random(f"{name} {store.name} {ranks} {seed}")
    runner.environ |= store.env
    whole = f"{store.url}/whole"
    prepare(case, lab, store, whole)
    started = time.monotonic()
    assert runner.run(case, whole, ranks, None, 0) == 0, (lab.folder / "log").read_text()[-2000:]
    seconds, expected = time.monotonic() - started, found(store, whole)
    killed = trial = 0
    while killed < kills:
        trial += 1
        out = f"{store.url}/out{trial}"
        prepare(case, lab, store, out)
        status = 1
        for _ in range(rng.randint(1, 3)):
            status = runner.run(case, out, ranks, rng, seconds)
            killed += status != 0
            if status == 0:
                break
        if status and not (case.appends and found(store, out) == expected):
            assert runner.run(case, out, ranks, None, 0) == 0, (lab.folder / "log").read_text()[-2000:]
        after = found(store, out)
        assert after.keys() == expected.keys(), (name, ranks, trial)
        assert not case.is_exact or after == expected, (name, ranks, trial)
        beside = {path.partition("/")[0] for path in store.list()}
        assert beside == {"whole", *(f"out{number}" for number in range(1, trial + 1))}
        assert not Storage(store.url, store.storage_options).uploads()
        left = [path for path in runner.temporary.iterdir() if not is_trial(path) and not _is_of_python(path)]
        assert left == [], (name, ranks, trial)
    return killed


def _is_of_python(path: Path) -> bool:
    """Whether a folder holds the sockets of `multiprocessing`, whose processes were all killed at once."""
    return path.name.startswith("pymp-") and all(each.is_socket() for each in path.iterdir())


@pytest.mark.parametrize("store", ["local"], indirect=True)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("servers", "tune")])
def test_a_killed_command_ends_as_if_it_had_not_been(runner: Runner, store: Store, name: str) -> None:
    """The short version of the campaign below."""
    kill_and_run(runner, store, name, kills=1, ranks=0, seed=0)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("store", ["local", "s3"], indirect=True)
@pytest.mark.parametrize(("name", "ranks"), [(name, ranks) for name, case in CASES.items() for ranks in case.ranks])
def test_campaign_of_kills(runner: Runner, store: Store, name: str, ranks: int) -> None:
    kills = 30 if CASES[name].ranks == (0,) else 10
    started = time.monotonic()
    killed = kill_and_run(runner, store, name, kills=kills // 2 + kills % 2, ranks=ranks, seed=1)
    print(f"{name} on {store.name}, {ranks} ranks: {killed} kills, {time.monotonic() - started:.0f} s")
