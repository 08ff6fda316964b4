"""`ringfeed launch` as users run it: real ranks, real deaths, one line at the end, and no sample lost or repeated."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple, Union

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.cli import main
from ringfeed.training.launching.endings import LauncherSignals
from tests.helpers.checkpoints import saved_steps
from tests.helpers.lean import lean_environment
from tests.helpers.noting_network import NETWORK
from tests.helpers.warm import WarmProcess, WarmServer

pytest.importorskip("horovod", reason="Horovod is built by: make setup")

RECORDS, BATCH, EVERY = 240, 12, 5
STEPS = RECORDS // BATCH
Launcher = Union["subprocess.Popen[str]", WarmProcess]

NOTE = """
import os, time, keras, numpy as np, tensorflow as tf

def note(step, ids):
    with open("seen", "a") as file:
        file.write(f"{os.getpid()} {os.environ['HOROVOD_RANK']} {os.environ['HOROVOD_SIZE']} {step} {ids.tolist()}\\n")
    if os.environ["HOROVOD_RANK"] == os.environ.get("STALLS") and os.path.exists("stall"):
        time.sleep(1000)  # line 8
    time.sleep(float(os.environ.get("PAUSE", 0)) / 100)
    return ids
"""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A folder with a configuration whose network logs the ids of the samples of each step of each process."""
    table = pa.table(
        {"id": range(RECORDS), "value": [row / RECORDS for row in range(RECORDS)], "label": ["a", "b"] * 120}
    )
    pq.write_table(table, tmp_path / "source.parquet")
    build(BuildOptions(source=str(tmp_path / "source.parquet"), destination=str(tmp_path / "data"), label="label"))
    (tmp_path / "networks.py").write_text(NOTE + NETWORK)
    tree = {
        "data": {"url": "data", "batch_size": BATCH, "eval_split": None},
        "model": {"name": "networks:network"},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "checkpoint": {"url": "run", "every_steps": EVERY, "keep": 1000},
        "epochs": 100,
        "watchdog_seconds": 120.0,  # a busy machine may hold a rank up for long
        "lost_seconds": 120.0,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    return tmp_path


def _configure(folder: Path, **settings: float) -> None:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | settings))


def _launch(folder: Path, *flags: str, warm: WarmServer | None = None, **environ: str) -> Launcher:
    words = ["ringfeed.tools.cli", "launch", *flags, "train", "--config", "run.yaml"]
    if warm is not None:
        return warm.start(words, folder=folder, output=folder / "output", environ=environ)
    words += filter(None, [environ.get("QUIET")])  # a pipe that nobody reads holds 64 KiB
    command = [sys.executable, "-m", *words]
    return subprocess.Popen(command, cwd=folder, env=lean_environment(environ), stderr=subprocess.PIPE, text=True)


def _output(process: Launcher) -> str:
    return "".join(filter(None, process.communicate(timeout=280)))


def _wait_for_step(folder: Path, step: int, process: Launcher) -> None:
    _wait_for(process, lambda: max(saved_steps(folder / "run"), default=-1) >= step)


def _ranks(process: Launcher) -> dict[int, psutil.Process]:
    """The ranks by number; a child may just begin, with its parent's environment, or have ended."""
    found = {}
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.Error):
            found[child.environ().get("HOROVOD_RANK")] = child
    return {int(rank): child for rank, child in found.items() if rank is not None}


class Seen(NamedTuple):
    """What one process has seen in one step."""

    pid: int
    rank: int
    size: int
    step: int
    ids: list[int]


def _noted_ranks(folder: Path) -> dict[int, psutil.Process]:
    """The ranks by number that have made a step."""
    return {seen.rank: psutil.Process(seen.pid) for seen in _seen(folder)}


def _seen(folder: Path) -> list[Seen]:
    whole = (folder / "seen").read_text().rpartition("\n")[0]  # a line that crosses a page may be there in part
    lines = (line.split(" ", 4) for line in whole.splitlines())
    return [Seen(*map(int, fields), json.loads(ids)) for *fields, ids in lines]


def _assert_each_sample_once_an_epoch(folder: Path, steps: int) -> dict[int, int]:
    """Check what the last ranks to make each step have seen; return how often each step was begun, by a rank 0."""
    attempts = {step: [seen for seen in _seen(folder) if seen.step == step] for step in range(steps)}
    kept = {step: seen[-seen[-1].size :] for step, seen in attempts.items()}
    assert all(sorted(seen.rank for seen in last) == list(range(last[0].size)) for last in kept.values())
    for epoch in range(steps // STEPS):
        last = [seen for step in range(epoch * STEPS, (epoch + 1) * STEPS) for seen in kept[step]]
        assert Counter(number for seen in last for number in seen.ids) == Counter(range(RECORDS)), epoch
    return {step: sum(seen.rank == 0 for seen in found) for step, found in attempts.items()}


def _wait_for(process: Launcher, is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 280
    while not is_there():
        assert process.poll() is None, _output(process)
        assert time.monotonic() < deadline, f"{process.pid} still runs"
        time.sleep(0.01)


def _stop(process: Launcher) -> tuple[int, str]:
    """End a run by SIGTERM; return the number of its steps, and what it printed."""
    process.send_signal(signal.SIGTERM)
    stderr = _output(process)
    assert process.returncode == 75, stderr
    assert "Traceback" not in stderr
    last = re.fullmatch(r"ringfeed launch: stopped by SIGTERM; the checkpoint of step (\d+).*", stderr.splitlines()[-1])
    assert last is not None, stderr
    return int(last[1]), stderr


def test_when_rank_0_is_killed_the_other_keeps_its_process_and_lets_a_new_rank_in(run_folder: Path) -> None:
    process = _launch(run_folder, "-n", "2", "--elastic", PAUSE="1")
    _wait_for_step(run_folder, 5, process)
    first = _ranks(process)
    os.kill(first[0].pid, signal.SIGKILL)
    newcomer = {first[0].pid, first[1].pid}
    _wait_for(process, lambda: bool({seen.pid for seen in _seen(run_folder)} - newcomer))
    survivor = [seen for seen in _seen(run_folder) if seen.pid == first[1].pid]
    assert {(seen.rank, seen.size) for seen in survivor} >= {(1, 2), (0, 1)}
    newest = max(saved_steps(run_folder / "run"))
    _wait_for_step(run_folder, newest + EVERY, process)
    stopped, stderr = _stop(process)
    assert "rank 0 was killed by SIGKILL" in stderr
    assert "going on with 1 ranks from step" in stderr
    assert "going on with 2 ranks from step" in stderr
    begun = _assert_each_sample_once_an_epoch(run_folder, stopped)
    assert sum(count > 1 for count in begun.values()) <= EVERY + 1  # since the commit, and the step of the kill


def test_a_rank_that_is_stopped_is_lost_after_lost_seconds_and_the_other_goes_on(
    run_folder: Path, warm: WarmServer
) -> None:
    _configure(run_folder, watchdog_seconds=0, lost_seconds=3.0)
    process = _launch(run_folder, "-n", "2", "--elastic", warm=warm, PAUSE="1")
    _wait_for_step(run_folder, 5, process)
    ranks = _noted_ranks(run_folder)
    ranks[0].suspend()
    start = time.monotonic()
    _wait_for(process, lambda: any((seen.pid, seen.size) == (ranks[1].pid, 1) for seen in _seen(run_folder)))
    assert time.monotonic() - start < 120
    stopped, stderr = _stop(process)
    assert "rank 0 does not answer: stopped, or its machine is gone; starting another instead\n" in stderr
    _assert_each_sample_once_an_epoch(run_folder, stopped)


def test_under_horovodrun_the_other_rank_goes_on_and_ends_the_run(run_folder: Path) -> None:
    (run_folder / "hosts").write_text("localhost:1\n127.0.0.1:1\n")
    (run_folder / "discover.sh").write_text("#!/bin/sh\ncat hosts\n")
    (run_folder / "discover.sh").chmod(0o755)
    programs = Path(sys.executable).parent
    command = [programs / "horovodrun", "--gloo", "-np", "2", "--min-np", "1", "--max-np", "4"]
    command += ["--network-interfaces", "lo", "--host-discovery-script", run_folder / "discover.sh"]
    command += [sys.executable, "-m", "ringfeed.tools.cli", "train", "--config", "run.yaml"]
    settings = ["epochs=2", "checkpoint.url=null", f"checkpoint.commit_steps={EVERY}", "output.metrics=metrics.json"]
    command += [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(
        command, cwd=run_folder, env=lean_environment({"PAUSE": "20"}), stderr=subprocess.PIPE, text=True
    )
    (run_folder / "seen").touch()
    _wait_for(process, lambda: any(seen.step > EVERY for seen in _seen(run_folder)))
    os.kill(next(seen.pid for seen in _seen(run_folder) if seen.rank == 0), signal.SIGKILL)
    _, stderr = process.communicate(timeout=240)
    assert "resuming from the commit of step " in stderr
    metrics = json.loads((run_folder / "metrics.json").read_text())
    assert (metrics["ranks"], metrics["total_steps"]) == (1, 2 * STEPS)
    begun = _assert_each_sample_once_an_epoch(run_folder, 2 * STEPS)
    assert sum(count > 1 for count in begun.values()) <= EVERY + 1


@pytest.mark.campaign
def test_campaign_of_kills_and_joins(run_folder: Path) -> None:
    """Fifty kills, a third of them during the recovery from another, and joins, of up to four ranks."""
    random = Random("elastic")
    (run_folder / "hosts").write_text("localhost:3")
    process = _launch(run_folder, "--elastic", "--hosts-file", "hosts", PAUSE="5", QUIET="-q")
    kills, deaths, progress = 0, 0, 0
    while kills < 50:
        _wait_for_step(run_folder, progress + random.choice([1, EVERY, STEPS]), process)
        progress = max(saved_steps(run_folder / "run"))
        victims = [rank for relay in psutil.Process(process.pid).children() for rank in relay.children()]
        for victim in random.sample(victims, min(len(victims), random.choice([1, 1, 2]))):
            with suppress(psutil.Error):
                victim.kill()
                kills += 1
            time.sleep(random.choice([0, 0.2, 1, 3]))  # detection, the next ring, the first step
        deaths += 1
        (run_folder / "hosts").write_text(f"localhost:{random.randint(2, 4)}")
    _wait_for_step(run_folder, progress + 2 * STEPS, process)
    stopped, stderr = _stop(process)
    begun = _assert_each_sample_once_an_epoch(run_folder, stopped)
    print(f"{kills} kills, {stopped} steps, {sum(n - 1 for n in begun.values())} again")
    assert max(begun.values()) <= 2 * kills
    assert sum(count - 1 for count in begun.values()) <= (EVERY + 1) * (kills + deaths), stderr


def test_a_launcher_takes_a_second_sigterm_for_the_first_and_ctrl_c_for_the_end() -> None:
    signals, numbers = LauncherSignals(), []
    with signals.listening():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            numbers.append(signals.number)
    assert numbers == [signal.SIGTERM, signal.SIGTERM, signal.SIGTERM, signal.SIGINT]


def test_ctrl_c_is_one_line_and_leaves_no_process(run_folder: Path) -> None:
    process = _launch(run_folder, "-n", "2")
    _wait_for(process, lambda: len(_ranks(process)) == 2)
    ranks = _ranks(process)
    assert all(os.getpgid(rank.pid) == rank.pid for rank in ranks.values())  # a terminal's Ctrl-C does not reach them
    process.send_signal(signal.SIGINT)
    stderr = _output(process)
    advice = "the same command resumes from the last checkpoint in run, or starts anew if none is there yet"
    assert (process.returncode, stderr) == (130, f"ringfeed launch: interrupted; {advice}\n")
    assert not [p for p in ranks.values() if p.is_running()]


def test_a_rank_that_stalls_is_named_with_its_place_and_all_end(run_folder: Path) -> None:
    _configure(run_folder, watchdog_seconds=20.0)
    process = _launch(run_folder, "-n", "2", STALLS="1")
    _wait_for_step(run_folder, 5, process)
    ranks = _ranks(process)
    (run_folder / "stall").touch()
    stderr = _output(process)
    assert process.returncode == 1
    line = stderr.splitlines()[-1]
    assert line.startswith("ringfeed launch: error: rank 1 has stalled in ")
    assert "networks.py:8 in note: the others have waited for " in line
    assert not [p for p in ranks.values() if p.is_running()]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-n", "0", "train", "--config", "run.yaml"], "1 <= --min-ranks <= -n must hold, got -n 0"),
        (
            ["-n", "2", "doctor"],
            "the ranks run train, predict or bench-ring: ringfeed launch -n 2 train --config FILE.yaml",
        ),
        (["-n", "2", "train", "--config", "nowhere.yaml"], "there is no configuration at nowhere.yaml"),
        (
            ["-n", "2", "--elastic", "train", "--config", "run.yaml", "--set", "checkpoint.every_steps=null"],
            "--elastic does not go with checkpoint.every_steps=null: it goes on from checkpoints; use checkpoint.ev",
        ),
        (
            ["-n", "2", "--elastic", "train", "--config", "run.yaml", "--set", "checkpoint.resume=false"],
            "--elastic does not go with checkpoint.resume=false: it goes on from checkpoints; leave out --elastic",
        ),
        (
            ["-n", "2", "--elastic", "train", "--config", "run.yaml", "--set", "sync.hierarchical=true"],
            "--elastic does not go with sync.hierarchical=true",
        ),
        (
            ["-n", "2", "train", "--config", "run.yaml", "--set", "sync.hierarchical=true"],
            "sync.hierarchical=true needs several hosts, and several ranks on one of them, got 2 ranks and one host",
        ),
    ],
)
def test_a_mistake_is_one_line_before_any_rank_starts(
    flags: list[str],
    message: str,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(run_folder)
    assert main(["launch", *flags]) == 1
    output = capfd.readouterr().err
    assert message in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("name", ["HOROVOD_AUTOTUNE", "HOROVOD_HIERARCHICAL_ALLREDUCE"])
@pytest.mark.parametrize("launcher", [["launch", "-n", "2"], []])
def test_settings_of_horovod_that_change_bits_are_refused_by_name(
    name: str,
    launcher: list[str],
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, "1")
    if not launcher:
        monkeypatch.setenv("HOROVOD_RANK", "0")  # as a rank of horovodrun
    assert main([*launcher, "train", "--config", str(run_folder / "run.yaml")]) == 1
    assert f"{name} is set, which is not supported" in capfd.readouterr().err
