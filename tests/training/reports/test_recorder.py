"""What a rank records: every step, in batches that a killed rank leaves whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ringfeed.pipeline import StageStats
from ringfeed.training.config.data import DataConfig
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.records.record_format import CHECKPOINT, END, Launch, Row, file_name
from ringfeed.training.reports.events import (
    ActivityDone,
    EpochBegan,
    RowsRecorded,
    RunBegan,
    RunEnded,
    StepDone,
    StepTimes,
)
from ringfeed.training.reports.open import open_reports
from ringfeed.training.reports.recorder import Recorder, RecordFile, _StageWatch

END_OF_RUN = RunEnded(0, 0, is_finished=True)


class _Stamps:
    """What a tensor of stamps has: `numpy`."""

    def __init__(self, ready: float, reduced: float) -> None:
        self._values = np.array([ready, reduced])

    def numpy(self) -> Any:
        return self._values


def _read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
    return rows


def _launch(**changes: Any) -> Launch:
    known: dict[str, Any] = {"rank": 0, "ranks": 1, "host": "h", "first_step": 0, "batch_size": 8, "total_steps": 9}
    return Launch(**{**known, **changes})


def _row(step: int) -> Row:
    return Row("step", step, 0, 1, 100.0 + step, 0.5, 0.25, 0.125, 0.0625, 0.0)


def test_a_step_is_recorded_part_by_part(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "new" / "records"), None)
    recorder.begin(RunBegan(rank=1, ranks=2, first_step=7, batch_size=8, total_steps=9))
    recorder.step(StepDone(8, 3, times=StepTimes(10.0, 10.5, 12.0, 12.25, _Stamps(11.0, 11.75))))
    recorder.step(StepDone(9, 3, times=StepTimes(12.5, 12.5, 13.0, 13.0, _Stamps(12.75, 13.0))))
    recorder.activity(ActivityDone(CHECKPOINT, 9, 4, 13.0, 0.5))
    recorder.close(RunEnded(9, 4, is_finished=True))
    first, second, checkpoint, end = _read(tmp_path / "new" / "records" / file_name(1, 7))
    parts = ("input_seconds", "gradient_seconds", "collective_seconds", "update_seconds")
    assert (first["activity"], first["step"], first["epoch"], first["steps"]) == ("step", 7, 3, 1)
    assert second["started"] - first["started"] == pytest.approx(2.5, abs=1e-5)  # as dates
    assert [first[part] for part in parts] == [0.5, 0.5, 1.0, 0.25]
    assert second["host_seconds"] == 0.25
    assert (checkpoint["activity"], checkpoint["step"]) == (CHECKPOINT, 9)
    assert (end["activity"], end["step"]) == (END, 9)


def test_each_second_says_what_the_stages_of_the_loader_did_since(tmp_path: Path) -> None:
    fetched = {"web": StageStats(items=3, busy_seconds=1.0), "mixture": StageStats()}

    def of_mixture() -> dict[str, dict[str, StageStats]]:
        return {name: {"fetch": stats, "open": StageStats()} for name, stats in fetched.items()}

    recorder = Recorder(str(tmp_path), None)
    recorder.begin(RunBegan(total_steps=9, batch_size=8))
    recorder.begin_epoch(EpochBegan(0, of_mixture))
    fetched["web"] = StageStats(items=5, busy_seconds=1.5, cpu_seconds=0.25, queue_depth=2)
    recorder.begin_epoch(EpochBegan(1, of_mixture))  # the same loader
    recorder.close(END_OF_RUN)
    rows = _read(tmp_path / file_name(0, 0, of_stages=True))
    assert [(row["dataset"], row["stage"], row["queue_depth"]) for row in rows] == [("web", "fetch", 2)]
    assert [rows[0][name] for name in ("items", "busy_seconds", "cpu_seconds")] == [2, 0.5, 0.25]
    began = [row["epoch"] for row in _read(tmp_path / file_name(0, 0)) if row["activity"] == "epoch"]
    assert began == [0, 1]


def test_looks_at_the_stages_become_rare_in_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now, counted = [100.0], [0]
    monkeypatch.setattr("ringfeed.training.reports.recorder.time.monotonic", lambda: now[0])
    watch, rows = _StageWatch(), []
    watch.follow(lambda: {"fetch": StageStats(items=counted[0])})
    for _ in range(100_000):
        now[0] += 0.1
        counted[0] += 1
        rows += watch.look(0.0, is_last=False)
    rows += watch.look(0.0, is_last=True)
    assert len(rows) < 256 * 10
    assert sum(row.items for row in rows) == counted[0]
    assert sum(row.seconds for row in rows) == pytest.approx(10_000)


def test_nothing_is_recorded_unasked() -> None:
    subscribers = open_reports(TrainConfig(data=DataConfig(url="x")), is_chief=False)
    assert subscribers == []


def test_a_run_without_steps_left_records_nothing(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path), None)
    recorder.begin(RunBegan(first_step=9, total_steps=9))
    recorder.close(RunEnded(9, 1, is_finished=True))
    assert list(tmp_path.iterdir()) == []


def test_a_file_cut_off_anywhere_keeps_its_whole_batches(tmp_path: Path) -> None:
    from ringfeed.tools.measure.run_records import read_run

    file = RecordFile(str(tmp_path), _launch())
    path, sizes = tmp_path / file_name(0, 0), []
    for step in range(3):
        file.rows(RowsRecorded([_row(step)]))
        sizes.append(path.stat().st_size)
    whole = path.read_bytes()
    for size in range(sizes[0], len(whole) + 1):
        path.write_bytes(whole[:size])
        # The first step of a launch compiles, and is left out.
        assert read_run(str(tmp_path)).steps.tolist() == [step for step in (1, 2) if sizes[step] <= size]


def test_steps_that_run_again_are_recorded_once(tmp_path: Path) -> None:
    for rank, ranks, first_step in ((0, 2, 0), (1, 2, 0), (0, 2, 6), (1, 2, 6)):
        RecordFile(str(tmp_path), _launch(rank=rank, ranks=ranks, first_step=first_step)).close(END_OF_RUN)
    (tmp_path / "metrics.json").touch()
    RecordFile(str(tmp_path), _launch(first_step=5)).close(
        END_OF_RUN
    )  # resumed from an earlier checkpoint, on one rank
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(["metrics.json", file_name(0, 0), file_name(1, 0), file_name(0, 5)])


def test_a_file_without_new_rows_still_shows_that_its_process_lives(tmp_path: Path) -> None:
    import os

    file = RecordFile(str(tmp_path), _launch())
    path = tmp_path / file_name(0, 0)
    os.utime(path, (1, 1))
    file.rows(RowsRecorded([]))
    assert path.stat().st_mtime > 1


def test_a_full_disk_ends_the_records_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordFile, "rows", full)
    recorder = Recorder(str(tmp_path), None)
    recorder.begin(RunBegan(total_steps=9, batch_size=8))
    recorder.close(END_OF_RUN)
    (message,) = [record.message for record in caplog.records]
    assert message.startswith("output.records gets no more of this run: ")
    assert "No space left on device" in message
