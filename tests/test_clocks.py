"""Durations are of a monotonic clock: the host's clock may be set back while a program runs."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pyarrow.ipc as ipc
import pytest
import tensorflow as tf

from ringfeed.training.reports.events import ActivityDone, RunBegan, RunEnded, StepDone, StepTimes
from ringfeed.training.reports.recorder import Recorder

ROOT = Path(__file__).parents[1]
WALL = {"time", "time_ns"}
DATES = {  # what takes the host's clock, and for what
    "sharding/storage/client_errors.py": "the date in a server's reply",
    "pipeline/fetch/disk_cache.py": "the time of a file's last use, for other processes",
    "training/reports/mlflow.py": "time stamps of MLflow's server",
    "training/reports/recorder.py": "the date of a process's rows",
    "tools/cache.py": "the age of files",
}


def _wall_clocks(path: Path) -> list[int]:
    """Lines that read the host's clock."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [node.lineno for alias in node.names if alias.name in WALL]
        is_read = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if is_read and (node.value.id, node.attr) in {*(("time", name) for name in WALL), ("tf", "timestamp")}:  # type: ignore[attr-defined]
            found.append(node.lineno)  # type: ignore[attr-defined]
    return found


def test_only_dates_are_taken_from_the_clock_of_the_host() -> None:
    folders = ("sharding", "pipeline", "training", "tools", "benchmarks")
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    readers = {str(path.relative_to(ROOT)) for path in paths if _wall_clocks(path)}
    assert readers == set(DATES)
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.c")]
    assert [path.name for path in sources if "CLOCK_REALTIME" in path.read_text()] == []


def test_records_of_a_run_hold_no_negative_time_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    recorder = Recorder(str(tmp_path), None)
    recorder.begin(RunBegan(total_steps=2, batch_size=1))
    began = time.time()
    for step in range(4):
        asked = time.monotonic()
        got, ready = time.monotonic(), time.monotonic()
        stamps = tf.constant([ready, time.monotonic()], tf.float64)
        end = time.monotonic()
        recorder.step(StepDone(step + 1, 0, times=StepTimes(asked, got, end, end, stamps)))
        monkeypatch.setattr(time, "time", lambda back=3600.0 * (step + 1): began - back)
        now = time.monotonic()
        recorder.activity(ActivityDone("evaluation", step + 1, 0, now, time.monotonic() - now))
    recorder.close(RunEnded(4, 0, is_finished=True))
    (path,) = tmp_path.glob("rank-*.arrow")
    rows: Any = ipc.open_stream(path.read_bytes()).read_all().to_pylist()
    assert len(rows) == 9
    for row in rows:
        assert all(row[name] >= 0 for name in row if name.endswith("_seconds")), row
        assert abs(row["started"] - began) < 600
