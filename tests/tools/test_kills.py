"""Commands that write, killed by SIGKILL at random moments: run again, each ends as if nobody had killed it.

The same files with the same content, and nothing beside them: no draft, lease, upload, folder or temporary file.
`pytest -m campaign` kills each at 30 moments, on disk and S3, on 1 to 3 ranks.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.sharding import AppendOptions, BuildOptions, append, build
from ringfeed.sharding.storage.lease import LEASE_NAME, Holder, boot_id
from ringfeed.sharding.storage.storage import Storage
from ringfeed.tools.cli import COMMANDS
from ringfeed.tools.cli import build_parser as ringfeed_parser
from ringfeed.tools.shard_dataset.parser import build_parser as shard_dataset_parser
from ringfeed.training.checkpoint.store import decode
from tests.helpers import forks
from tests.helpers.lean import lean_environment
from tests.helpers.pictures import write_pictures
from tests.servers.store import Store
from tests.sharding.conftest import is_trial


@dataclass(frozen=True, kw_only=True)
class Lab:
    """What all commands read."""

    folder: Path

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    @property
    def model(self) -> str:
        return str(self.folder / "first" / "model.keras")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command.

    Attributes:
        words: the command and its arguments, from the lab and the URL that it writes to.
        given: folders of the lab that lie at `d` below that URL before it starts, one copied over the other.
        launches: the arguments of `ringfeed launch` with which it is tried; empty: without it.
        is_exact: whether two undisturbed runs end with the same content.
    """

    words: Callable[[Lab, str], list[str]]
    given: tuple[str, ...] = ()
    launches: tuple[str, ...] = ("",)
    is_exact: bool = True


def _train(lab: Lab, out: str) -> list[str]:
    files = {"checkpoint.url": "run", "output.model": "model.keras", "output.metrics": "metrics.json"}
    files |= {"track.jsonl": "log.jsonl", "track.csv": "tables"}
    sets = [word for key, name in files.items() for word in ("--set", f"{key}={out}/{name}")]
    return ["train", "--config", str(lab.folder / "run.yaml"), "-q", *sets]


def _on_servers(lab: Lab, out: str) -> list[str]:
    return [*_train(lab, out), "--set", "backend=parameter_server", "--set", "deterministic=false"]


def _line(text: str) -> Callable[[Lab, str], list[str]]:
    """The words of a line in which DATA, MODEL, LAB and OUT stand for their paths."""

    def words(lab: Lab, out: str) -> list[str]:
        places = {"DATA": lab.data, "MODEL": lab.model, "LAB": str(lab.folder), "OUT": out}
        return [re.sub("DATA|MODEL|LAB|OUT", lambda match: places[match[0]], word) for word in text.split()]

    return words


_BUILD = "--label y --shards 6 --workers 2 --split train=0.8,test=0.2"
_MEASURED = "--split train --batch-size 64 --seconds 0.5 -q"
_RANKS = ("", "-n 2", "-n 3")
CASES = {
    "build": Case(words=_line(f"build LAB/a.parquet OUT/d {_BUILD} --dali-index")),
    "build on 3": Case(words=_line(f"build LAB/a.parquet OUT/d {_BUILD} --workers 3")),
    "append": Case(words=_line("append LAB/b.parquet OUT/d --workers 2"), given=("data",)),
    "append on 3": Case(words=_line("append LAB/b.parquet OUT/d --workers 3"), given=("data",)),
    "overwrite": Case(words=_line(f"build LAB/a.parquet OUT/d {_BUILD} --overwrite"), given=("appended",)),
    "reshard": Case(words=_line("reshard DATA OUT/d --shards 3 --format parquet --workers 2")),
    "reshard on 3": Case(words=_line("reshard DATA OUT/d --shards 3 --format parquet --workers 3")),
    "repair": Case(words=_line("repair OUT/d --source LAB/a.parquet"), given=("data", "damages")),
    "salvage": Case(words=_line("repair OUT/d"), given=("data", "damages")),
    "clean": Case(words=_line("clean OUT/d"), given=("killed",)),
    "webdataset": Case(words=_line("export DATA OUT/d --to webdataset")),
    "hf": Case(words=_line("export DATA OUT/d --to hf")),
    "train": Case(words=_train, launches=(*_RANKS, "-n 2 --elastic")),
    "servers": Case(words=_on_servers, launches=("--ps 1 --workers 2",), is_exact=False),
    "lr_find": Case(words=_line("train --config LAB/run.yaml -q --lr-find OUT/rates.json")),
    "predict": Case(words=_line("predict MODEL DATA --split train --out OUT/p -q"), launches=_RANKS),
    "saved_model": Case(words=_line("export MODEL --out OUT/served -q")),
    "keras": Case(words=_line("export MODEL --out OUT/again.keras -q")),
    "onnx": Case(words=_line("export MODEL --out OUT/again.onnx -q")),
    "trace": Case(words=_line("trace --config LAB/pictures.yaml --step 0 --save OUT/images")),
    "tune": Case(words=_line(f"tune DATA {_MEASURED} --out OUT/tuned.yaml"), is_exact=False),
    "profile": Case(words=_line(f"profile DATA {_MEASURED} --html OUT/page.html"), is_exact=False),
    "profile of a run": Case(words=_line("profile LAB/first/records -q --html OUT/page.html --trace OUT/trace.json")),
    "simulate": Case(
        words=_line("simulate DATA --seconds 0.5 -q --save-costs OUT/costs.json --html OUT/page.html"), is_exact=False
    ),
}
_SHARDING = ("build", "append", "reshard", "repair", "clean", "inspect", "verify", "cat")
_WRITE_NOTHING_OF_THEIR_OWN = {"inspect", "verify", "cat", "launch", "bench-ring", "cache", "doctor", "completion"}
_WRITES = re.compile(r"\bwrite (?!nothing|'|it after)")  # in the help of an option
_SHORT = ("build", "append", "reshard", "salvage", "webdataset", "train", "predict", "saved_model", "keras")
_INSTALLS = {"install-horovod"}  # compiles for minutes, under a lock, and uses no wheel without its checksum


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder: Path = tmp_path_factory.mktemp("lab")
    for seed, name in enumerate("ab"):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=4000).astype(np.float32)
        rows = {"x": x, "n": rng.integers(0, 9, 4000), "y": np.where(x > 0.3, "p", "q")}
        pq.write_table(pa.table(rows), folder / f"{name}.parquet", row_group_size=500)
    options = BuildOptions(source=str(folder / "a.parquet"), destination=str(folder / "data"), label="y", shards=6)
    build(replace(options, splits={"train": Fraction(4, 5), "test": Fraction(1, 5)}, workers=1))
    shutil.copytree(folder / "data", folder / "appended")
    append(AppendOptions(source=str(folder / "b.parquet"), destination=str(folder / "appended"), workers=1))
    shutil.copytree(folder / "data", folder / "killed")
    (folder / "killed" / "_ringfeed" / "dataset.json").unlink()
    about, token = {"task": "build"}, "0123456789abcdef"
    killed = Holder(token=token, host=socket.gethostname(), boot=boot_id(), pid=1, started="0", about=about)
    (folder / "killed" / LEASE_NAME).write_bytes(killed.encode())
    (folder / "damages").mkdir()
    for number, shard in enumerate(sorted((folder / "data").glob("train-*.tfrecord"))[:2]):
        data = bytearray(shard.read_bytes())
        data[200 : 200 + 60 * number + 1] = bytes(60 * number + 1)
        (folder / "damages" / shard.name).write_bytes(data)
    tree = {
        "data": {"url": str(folder / "data"), "batch_size": 160},
        "model": {"hidden": [8]},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "epochs": 2,
        "checkpoint": {"every_steps": 4, "keep": 2},
        "output": {"log_every": 10},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    source, pictures = str(write_pictures(folder / "png", 24, ("png",))), str(folder / "pictures")
    build(source=source, destination=pictures, label="label", shards=2, workers=1)
    tree = {"data": {"url": pictures, "batch_size": 8}, "model": {"name": "convnet", "image_shape": [24, 24, 3]}}
    (folder / "pictures.yaml").write_text(yaml.safe_dump(tree))
    return Lab(folder=folder)


@dataclass(kw_only=True)
class Runner:
    """Starts commands, kills them, and sees what they leave."""

    lab: Lab
    temporary: Path
    forker: subprocess.Popen[str]
    environ: dict[str, str] = field(default_factory=dict)

    def run(
        self, case: Case, out: str, launch: str = "", rng: random.Random | None = None, seconds: float = 0.0
    ) -> int:
        """Run a command to its end, or kill it at a random moment; return its status."""
        words = case.words(self.lab, out)
        program = "shard-dataset" if words[0] in _SHARDING or "--to" in words else "ringfeed"
        words = [program, *(["launch", *launch.split()] if launch else []), *words]
        order: dict[str, Any] = {"words": words, "environ": self.environ, "log": str(self.lab.folder / "log")}
        if by_call := rng is not None and not launch and "://" not in out and rng.random() < 0.5:
            order |= {"die_at": rng.randrange(1, 120), "mark": out}
        assert self.forker.stdin is not None
        assert self.forker.stdout is not None
        self.forker.stdin.write(json.dumps(order) + "\n")
        self.forker.stdin.flush()
        pid = int(self.forker.stdout.readline())
        if rng is not None and not by_call:
            alone = bool(launch) and "--elastic" not in launch  # whose ranks go on without the killed, to rounding
            kill_later(pid, rng, seconds, lambda: not Path(f"/proc/{pid}").exists(), is_launcher=alone)
        status = int(self.forker.stdout.readline())
        await_end(lambda: members(pid))
        return status

    @property
    def log(self) -> str:
        """The end of what the commands have printed."""
        return (self.lab.folder / "log").read_text()[-3000:]


def kill_later(pid: int, rng: random.Random, seconds: float, is_over: Callable[[], bool], is_launcher: bool) -> None:
    """Kill a process at a random moment, alone or together with all that it has started, and wait for those.

    Of a launcher perhaps one of these alone, such as a rank or a parameter server: then the launcher goes on, or ends
    the run, which the same command resumes.
    """
    deadline = time.monotonic() + rng.uniform(0.0, seconds)
    while time.monotonic() < deadline and not is_over():
        time.sleep(0.002)
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        children = parent.children(recursive=True)
        if is_launcher and children and rng.random() < 0.4:
            rng.choice(children).kill()
            return
        for process in [parent, *(children if rng.random() < 0.5 else [])]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await_end(lambda: children)


def await_end(processes: Callable[[], Iterable[psutil.Process]]) -> None:
    """Wait until all of these have ended, whether or not anybody has asked for their status."""
    deadline = time.monotonic() + 60
    while running := list(filter(_runs, processes())):
        assert time.monotonic() < deadline, f"processes of a killed command still run: {running}"
        time.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def members(group: int) -> Iterator[psutil.Process]:
    """The processes of a group, such as workers and ranks, which end soon after their command."""
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group:
                yield process


@pytest.fixture(scope="module")
def runner(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    temporary: Path = tmp_path_factory.mktemp("tmp")
    environ = lean_environment({"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""})
    forker = subprocess.Popen(
        [sys.executable, forks.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )
    runner = Runner(lab=lab, temporary=temporary, forker=forker, environ={"TMPDIR": str(temporary)})
    first = Case(words=lambda lab, out: [*_train(lab, out), "--set", f"output.records={out}/records"])
    assert runner.run(first, str(lab.folder / "first")) == 0, runner.log
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
    if name.endswith(("log.jsonl", ".csv")):
        return name, [line for line in data.decode().splitlines() if "evaluation" in name + line]
    if name.endswith("metrics.json"):
        metrics = json.loads(data)
        return name, [metrics[key] for key in ("final", "weights_digest", "total_steps")]
    if name.endswith(("saved_model.pb", "fingerprint.pb", "variables.index", ".html")):
        return name, None  # TensorFlow puts random numbers in, and Matplotlib into plots
    return name, data


def found(store: Store, out: str) -> dict[str, Any]:
    """The content of all files below a folder of a store, and the names of its folders on a disk."""
    prefix = out.removeprefix(f"{store.url}/")
    files = dict(content(name, store.read_bytes(name)) for name in store.list() if name.startswith(f"{prefix}/"))
    if store.name == "local":
        files |= {f"{path.relative_to(store.url)}/": None for path in Path(out).rglob("*") if path.is_dir()}
    return {name.removeprefix(prefix): value for name, value in files.items()}


def prepare(case: Case, lab: Lab, store: Store, out: str) -> None:
    fs, root = fsspec.core.url_to_fs(f"{out}/d", **store.storage_options)
    for folder in case.given:
        fs.put(f"{lab.folder / folder}/", f"{root}/", recursive=True)


def kill_and_run(runner: Runner, store: Store, name: str, kills: int, launch: str, seed: int) -> int:
    """Kill a command so many times at random moments, in threes, and let it end each time; return the kills."""
    case, lab, rng = CASES[name], runner.lab, random.Random(f"{name} {store.name} {launch} {seed}")
    runner.environ |= store.env
    whole = f"{store.url}/whole"
    prepare(case, lab, store, whole)
    started = time.monotonic()
    assert runner.run(case, whole, launch) == 0, runner.log
    seconds, expected = time.monotonic() - started, found(store, whole)
    killed = trial = 0
    while killed < kills:
        trial += 1
        out = f"{store.url}/out{trial}"
        prepare(case, lab, store, out)
        status = 1
        for _ in range(rng.randint(1, 3)):
            status = runner.run(case, out, launch, rng, seconds)
            killed += status != 0
            if status == 0:
                break
        if status:
            assert runner.run(case, out, launch) == 0, runner.log
        check_nothing_left(
            runner, store, {"whole", *(f"out{number}" for number in range(1, trial + 1))} if expected else set()
        )
        after = found(store, out)
        assert after.keys() == expected.keys(), (name, launch, trial)
        assert not case.is_exact or after == expected, (name, launch, trial)
    return killed


def check_nothing_left(runner: Runner, store: Store, written: set[str]) -> None:
    """Check that nothing lies beside the folders that commands wrote: no file, upload, or temporary file."""
    assert {path.partition("/")[0] for path in store.list()} == written
    assert not Storage(store.url, store.storage_options).uploads()
    left = [path for path in runner.temporary.iterdir() if not is_trial(path) and not _is_of_python(path)]
    assert left == [], written


def _is_of_python(path: Path) -> bool:
    """Whether a folder is one of `multiprocessing`, whose process was killed before it could mark it."""
    return path.name.startswith("pymp-") and list(path.iterdir()) == []


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser of each command, by name."""
    for parser in (shard_dataset_parser(), *map(ringfeed_parser, COMMANDS)):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from action.choices.items()


def test_each_command_and_option_that_writes_is_in_the_table(tmp_path: Path) -> None:
    tried = {name: case.words(Lab(folder=tmp_path), "out") for name, case in CASES.items()}
    commands = {name for name, _ in parsers()}
    assert commands == {words[0] for words in tried.values()} | _WRITE_NOTHING_OF_THEIR_OWN | _INSTALLS
    actions = [action for _, parser in parsers() for action in parser._actions if action.option_strings]
    flags = {each.option_strings[-1] for each in actions if _WRITES.search(each.help or "")}
    assert {"--html", "--out"} <= flags
    assert flags <= {word for words in tried.values() for word in words}


@pytest.mark.parametrize("store", ["local"], indirect=True)
@pytest.mark.parametrize("name", _SHORT)
def test_a_killed_command_ends_as_if_it_had_not_been(runner: Runner, store: Store, name: str) -> None:
    """The short version of the campaign below."""
    kill_and_run(runner, store, name, kills=1, launch="", seed=0)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("store", ["local", "s3"], indirect=True)
@pytest.mark.parametrize(("name", "launch"), [(name, launch) for name in CASES for launch in CASES[name].launches])
def test_campaign_of_kills(runner: Runner, store: Store, name: str, launch: str) -> None:
    """Kills each 30 times, or as often as `RINGFEED_KILLS` says; runs with other seeds add up."""
    started = time.monotonic()
    kills, seed = int(os.environ.get("RINGFEED_KILLS", "30")), int(os.environ.get("RINGFEED_SEED", "1"))
    killed = kill_and_run(runner, store, name, kills, launch, seed)
    print(f"{name} on {store.name} {launch}: {killed} kills, {time.monotonic() - started:.0f} s")
