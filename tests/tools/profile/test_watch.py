"""Following a run: until it starts, while it trains, and when it ends, is killed, or the watcher is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfeed.tools.profile.watch import follow
from ringfeed.training.records.record_format import END, Launch, Row
from ringfeed.training.reports.events import RowsRecorded
from ringfeed.training.reports.recorder import RecordFile

LAUNCH = Launch(rank=0, ranks=1, host="h", first_step=0, batch_size=8, total_steps=99)


def _rows(steps: range) -> list[Row]:
    return [Row("step", step, 0, 1, 1000.0 + step, 0.5, 0.5, 0.0, 0.0, 0.0) for step in steps]


def _script(folder: Path) -> Iterator[None]:
    """What happens to the run from one look to the next."""
    yield
    file = RecordFile(str(folder), LAUNCH)
    yield
    file.rows(RowsRecorded(_rows(range(50))))
    yield
    file.rows(RowsRecorded([Row(END, 50, 1, 1, 2000.0, 0, 0, 0, 0, 0)]))
    yield


def _steps_of(script: Iterator[None]) -> Callable[[], None]:
    return lambda: next(script)


def test_a_run_is_followed_from_before_its_start_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "records"
    records = follow(str(folder), _steps_of(_script(folder)), pause_seconds=0)
    assert records.ended
    assert records.steps.size == 49
    waiting, working = capsys.readouterr().err.splitlines()
    assert waiting == f"waiting for the first steps in {folder}"
    assert working == (
        "step 49 of 99, 8 samples/s: The run is highly input-bound: ranks wait for input for 50% of the time; "
        "50% computing."
    )


def test_a_killed_run_ends_it(tmp_path: Path) -> None:
    RecordFile(str(tmp_path), LAUNCH).rows(RowsRecorded(_rows(range(50))))
    assert not follow(str(tmp_path), lambda: None, pause_seconds=0, silent_seconds=0).ended


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(str(tmp_path), interrupt)
