"""Read the records that the ranks of a run wrote: the steps of its newest launch, side by side.

Tested in tests/tools/verdict/test_run_verdict.py and tests/training/records/test_real_runs.py.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.pipeline.metrics.stage_counters import STAGES
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.formats.ipc_claims import claimed_bytes
from ringfeed.sharding.storage.untrusted_files import guarded, read_untrusted
from ringfeed.training.records.record_format import (
    CHECKPOINT,
    END,
    EPOCH,
    EVALUATION,
    SCHEMA,
    STAGE_SCHEMA,
    STEP,
    Launch,
    file_name,
    first_step_of,
)

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_MOST_FILES, _MOST_FILE_BYTES, _MOST_BYTES = 100_000, 64 << 20, 256 << 20  # a rank records some 10 MB
_MOST_VALUE = 1e12  # seconds since 1970, and numbers of steps, are far below
_CUT_OFF = (pa.ArrowInvalid, EOFError, OSError)  # the last batch is still being written, or its writer was killed
_PARTS = ("input_seconds", "gradient_seconds", "collective_seconds", "update_seconds", "host_seconds")


class NoStepsError(ConfigError):
    """There are no records yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """An evaluation or a checkpoint of a rank; `started` is a Unix time of the rank's clock."""

    rank: int
    name: str
    step: int
    started: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """The recorded steps of a launch, without its first step, which compiles; arrays are by [rank] and step.

    Attributes:
        folder: where the records are.
        launches: by rank, in the order of the arrays.
        earlier_launches: number of launches before this one, from earlier steps.
        missing: ranks of the launch without records.
        ended: whether all ranks ended by themselves, also with an error; those that were killed did not.
        first_input_seconds: the longest wait of a rank for its first batch; 0 until it has come.
        steps: numbers of the steps that all ranks recorded, int64 [steps].
        weights: how many steps each stands for, int64 [steps].
        epochs: their epochs, int64 [steps].
        started: Unix time of each step's begin, by the rank's clock, float64 [ranks, steps].
        input_seconds, gradient_seconds, collective_seconds, update_seconds, host_seconds: the parts of each step,
            float64 [ranks, steps]: see `ringfeed.training.records.record_format.Row`.
        is_epoch_start: whether each is the first of its epoch, bool [steps].
        activities: evaluations and checkpoints of all ranks.
        stages: what the stages of each rank's loader did since the first of these steps, tables of `StageRow`.
    """

    folder: str
    launches: tuple[Launch, ...]
    earlier_launches: int
    missing: tuple[int, ...]
    ended: bool
    first_input_seconds: float
    steps: Integers
    weights: Integers
    epochs: Integers
    started: Floats
    input_seconds: Floats
    gradient_seconds: Floats
    collective_seconds: Floats
    update_seconds: Floats
    host_seconds: Floats
    is_epoch_start: npt.NDArray[np.bool_]
    activities: tuple[Activity, ...]
    stages: tuple[pa.Table, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of the ranks, in the order of the arrays."""
        return tuple(launch.rank for launch in self.launches)

    @property
    def own_parts(self) -> dict[str, Floats]:
        """Seconds of what a rank does by itself in each step, float64 [ranks, steps]: input, computing, the loop."""
        compute = self.gradient_seconds + self.update_seconds
        return {"input": self.input_seconds, "compute": compute, "overhead": self.host_seconds}

    @property
    def step_seconds(self) -> Floats:
        """Seconds of each step with the loop before it, float64 [ranks, steps]."""
        total: Floats = np.sum([*self.own_parts.values(), self.collective_seconds], axis=0)
        return total

    def last(self, seconds: float) -> RunRecords:
        """The steps and activities of the last so many seconds."""
        if not self.steps.size:
            return self
        begin = self.started[0, -1] - seconds
        kept = self.started[0] >= begin
        arrays = {
            field.name: getattr(self, field.name)[..., kept]
            for field in fields(self)
            if isinstance(getattr(self, field.name), np.ndarray)
        }
        activities = tuple(each for each in self.activities if each.started >= begin)
        stages = tuple(
            table.filter(pc.greater_equal(table["started"], own[-1] - seconds))
            for table, own in zip(self.stages, self.started, strict=True)
        )
        return replace(self, **arrays, activities=activities, stages=stages)


def holds_records(folder: str) -> bool:
    """Whether a path is a local folder with records of a run."""
    return any(_files(folder))


def read_run(folder: str) -> RunRecords:
    """Read the newest launch of a run; files may still be written, or end in a batch that was cut off.

    Raises:
        NoStepsError: the folder holds no records.
        ConfigError: a file is damaged or forged, or another version wrote it.
    """
    files = sorted(_files(folder))
    if not files:
        raise NoStepsError(f"{folder}: no records of a run; `ringfeed train` writes them where output.records says")
    if len(files) > _MOST_FILES:
        raise ConfigError(f"{folder}: {len(files)} files of records, more than {_MOST_FILES}")
    begins = sorted({first_step for first_step, _, _ in files})
    newest = [path for first_step, _, path in files if first_step == begins[-1]]
    read = [_read(path, SCHEMA, _check_rows) for path in newest]
    ranks = [each for each in read if each is not None]
    if not ranks:
        raise NoStepsError(f"{folder}: the records have no first batch yet")
    launches = tuple(launch for launch, _ in ranks)
    tables = [table for _, table in ranks]
    are_steps = [np.asarray(table["activity"]) == STEP for table in tables]
    steps = [table.filter(pa.array(is_step)) for table, is_step in zip(tables, are_steps, strict=True)]
    others = [table.filter(pa.array(~is_step)) for table, is_step in zip(tables, are_steps, strict=True)]
    firsts = [table["input_seconds"][0].as_py() if table.num_rows else 0.0 for table in steps]
    aligned, common = _aligned([table.slice(1) for table in steps])
    begins_of = [table["started"][0].as_py() if table.num_rows else math.inf for table in aligned]
    paths = [path for path, each in zip(newest, read, strict=True) if each is not None]
    return RunRecords(
        folder=folder,
        launches=launches,
        earlier_launches=len(begins) - 1,
        missing=tuple(sorted(set(range(launches[0].ranks)) - {launch.rank for launch in launches})),
        ended=all(END in table["activity"].to_pylist() for table in others),
        first_input_seconds=max(firsts),
        steps=common,
        weights=_column(aligned[0], "steps").astype(np.int64),
        epochs=_column(aligned[0], "epoch").astype(np.int64),
        started=np.stack([_column(table, "started") for table in aligned]),
        is_epoch_start=np.isin(common, others[0].filter(pc.equal(others[0]["activity"], EPOCH))["step"].to_numpy()),
        activities=tuple(
            each for launch, table in zip(launches, others, strict=True) for each in _activities(launch.rank, table)
        ),
        stages=tuple(itertools.starmap(_stages, zip(paths, begins_of, strict=True))),
        **{part: np.stack([_column(table, part) for table in aligned]) for part in _PARTS},
    )


def _files(folder: str) -> Iterator[tuple[int, int, Path]]:
    """First step, rank and path of each file."""
    path = Path(folder)
    for file in path.iterdir() if path.is_dir() else ():
        place = first_step_of(file.name)
        if place is not None and file.name == file_name(*place):
            yield place[1], place[0], file


def _read(path: Path, schema: pa.Schema, check: Callable[[pa.Table], None]) -> tuple[Launch, pa.Table] | None:
    """Read the whole batches of a file; None if not even its schema is whole, or it was just removed."""
    batches: list[pa.RecordBatch] = []
    launch = None
    with guarded(str(path), "records of a run"):
        try:
            data = read_untrusted(str(path), _MOST_FILE_BYTES)
        except ConfigError:
            if os.path.lexists(path):
                raise
            return None
        _check_claims(data)
        with suppress(*_CUT_OFF), pa.ipc.open_stream(data) as reader:
            launch = Launch.from_metadata(reader.schema.metadata, str(path))
            if not reader.schema.equals(schema):
                raise ConfigError("a run's records have other columns")
            batches.extend(reader)
        if launch is None:
            return None
        if (launch.rank, launch.first_step) != first_step_of(path.name):
            raise ConfigError(f"it is of rank {launch.rank} from step {launch.first_step}, unlike its name")
        table = pa.Table.from_batches(batches, schema)
        table.validate(full=True)
        for name in schema.names:
            values = table[name]
            is_number = not pa.types.is_string(values.type)
            if values.null_count or (is_number and not (np.abs(values.to_numpy().astype(float)) <= _MOST_VALUE).all()):
                raise ConfigError(f"its column {name!r} has values that no rank records")
        check(table)
        return launch, table


def _check_claims(data: bytes) -> None:
    """Refuse compressed batches that would take far more memory than a run's records do."""
    claimed = 0
    with suppress(*_CUT_OFF):
        for message in pa.ipc.MessageReader.open_stream(data):
            claimed += claimed_bytes(message)
            if claimed > _MOST_BYTES:
                raise ConfigError(f"it claims to hold {claimed} bytes, a run's records at most {_MOST_BYTES}")


def _check_rows(table: pa.Table) -> None:
    """Refuse steps that no rank records."""
    if unknown := set(table["activity"].unique().to_pylist()) - {STEP, EVALUATION, CHECKPOINT, EPOCH, END}:
        raise ConfigError(f"it has the activity {unknown.pop()!r}")
    steps = table.filter(pc.equal(table["activity"], STEP))
    numbers = steps["step"].to_numpy()
    if (numbers < 0).any() or (np.diff(numbers) <= 0).any() or (steps["steps"].to_numpy() < 1).any():
        raise ConfigError("its steps are not in order")


def _aligned(tables: Sequence[pa.Table]) -> tuple[list[pa.Table], Integers]:
    """Keep the steps that all tables have."""
    numbers = [_column(table, "step").astype(np.int64) for table in tables]
    common = numbers[0]
    for each in numbers[1:]:
        common = np.intersect1d(common, each)
    return [table.filter(pa.array(np.isin(own, common))) for table, own in zip(tables, numbers, strict=True)], common


def _column(table: pa.Table, name: str) -> Floats:
    values: Floats = table[name].to_numpy().astype(np.float64)
    return values


def _activities(rank: int, table: pa.Table) -> Iterator[Activity]:
    for row in table.to_pylist():
        if row["activity"] in (EVALUATION, CHECKPOINT):
            yield Activity(
                rank=rank,
                name=row["activity"],
                step=row["step"],
                started=row["started"],
                seconds=row["host_seconds"],
            )


def _stages(steps_path: Path, begin: float) -> pa.Table:
    """The rows of a rank's loader from a time on, which are in a file beside the one of its steps; perhaps none."""
    rank, first_step = first_step_of(steps_path.name) or (0, 0)
    path = steps_path.with_name(file_name(rank, first_step, of_stages=True))
    read = _read(path, STAGE_SCHEMA, _check_stages) if os.path.lexists(path) else None
    table = STAGE_SCHEMA.empty_table() if read is None else read[1]
    return table.filter(pc.greater_equal(table["started"], begin))


def _check_stages(table: pa.Table) -> None:
    """Refuse stages that no loader has, and times that run backwards."""
    if unknown := set(table["stage"].unique().to_pylist()) - set(STAGES):
        raise ConfigError(f"it has the stage {unknown.pop()!r}")
    if (table["seconds"].to_numpy() < 0).any():
        raise ConfigError("its times run backwards")
