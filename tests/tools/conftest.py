"""Fixtures of the commands: a source and a dataset built from it; records of runs whose bottleneck is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from ringfeed.tools.shard_dataset.program import main
from ringfeed.training.records.record_format import CHECKPOINT, END, EPOCH, EVALUATION, Launch, Row, StageRow
from ringfeed.training.reports.events import RowsRecorded, RunEnded
from ringfeed.training.reports.recorder import RecordFile
from tests.helpers.commands import ROWS

Write = Callable[..., str]
_NOTHING = {"items": 1, "bytes": 1, "busy_seconds": 0.0, "cpu_seconds": 0.0, "wait_seconds": 0.0, "queue_depth": 2}


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "flights.csv"
    lines = [f"{i},{'AA' if i % 3 else 'ü'},{i / 8},{'late' if i % 10 == 0 else 'on time'}" for i in range(ROWS)]
    path.write_text("\n".join(["id,carrier,hours,status", *lines]) + "\n")
    return str(path)


@pytest.fixture
def dataset(source: str, tmp_path: Path) -> Path:
    out = tmp_path / "shards"
    assert (
        main(
            ["build", source, str(out), "--label", "status", "--split", "train=0.9,test=0.1", "--shards", "3", "--json"]
        )
        == 0
    )
    return out


@pytest.fixture
def write_run(tmp_path: Path) -> Write:
    """A function that writes a run whose ranks take given seconds for input and gradients, by [rank][step].

    The rest follows from them: a rank enters the all-reduce when it has its gradients, and all leave it when the last
    one has, and some time has passed.
    """

    def write(
        input_seconds: Sequence[Sequence[float]],
        gradient_seconds: Sequence[Sequence[float]],
        *,
        reduce_seconds: float = 0.001,
        host_seconds: float = 0.0001,
        clocks: Sequence[float] | None = None,
        hosts: Sequence[str] | None = None,
        epoch_steps: int | None = None,
        stages: Mapping[str, Mapping[str, float]] | None = None,
    ) -> str:
        inputs, gradients = np.array(input_seconds, float), np.array(gradient_seconds, float)
        ranks, steps = inputs.shape
        files = [
            RecordFile(
                str(tmp_path / "records"),
                Launch(
                    rank=rank, ranks=ranks, host=hosts[rank] if hosts else "node", first_step=0, batch_size=10 * ranks,
                    total_steps=2 * steps,
                ),
            )
            for rank in range(ranks)
        ]  # fmt: skip
        rows: list[list[Row]] = [[] for _ in files]
        now = 1_000_000.0
        for step in range(steps):
            own = host_seconds + inputs[:, step] + gradients[:, step]
            end = now + own.max() + reduce_seconds
            for rank, own_rows in enumerate(rows):
                begin = now + host_seconds + (clocks[rank] if clocks else 0.0)
                waited, computed = inputs[rank, step], gradients[rank, step]
                own_rows.append(
                    Row("step", step, 0, 1, begin, waited, computed, end - now - own[rank], 0.0, host_seconds)
                )
            now = end
        for rank, file in enumerate(files):
            begin = now + (clocks[rank] if clocks else 0.0)
            evaluation = Row(EVALUATION, steps, 1, 1, begin, 0, 0, 0, 0, 2.0)
            checkpoint = Row(CHECKPOINT, steps, 1, 1, begin + 2, 0, 0, 0, 0, 1.0)
            end = Row(END, steps, 1, 1, begin + 3, 0, 0, 0, 0, 0)
            starts = [Row(EPOCH, step, step, 1, begin, 0, 0, 0, 0, 0) for step in range(0, steps, epoch_steps or steps)]
            looks = [
                StageRow("", name, row.started, 1.0, **{**_NOTHING, **counted})  # type: ignore[arg-type]
                for name, counted in (stages or {}).items()
                for row in rows[rank][1:3]
            ]
            file.rows(RowsRecorded([*starts, *rows[rank], evaluation, checkpoint, end], looks))
            file.close(RunEnded(steps, 1, is_finished=True))
        return str(tmp_path / "records")

    return write
