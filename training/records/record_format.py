"""The files of a run's records: names, columns, and which steps are kept. No TensorFlow here: readers need none.

A rank writes ``rank-RANK.from-STEP.arrow``, an Arrow IPC stream, each time that it starts; STEP is its first step. A
stream can be read while it is written, and up to the last whole batch if its writer was killed. Beside it,
``rank-RANK.from-STEP.stages.arrow`` has what the stages of the rank's loader did. Times are of the rank's own clock;
only durations can be compared between hosts.
Tested in tests/training/reports/test_recorder.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import printable

FORMAT = "ringfeed-records-1"
STEP, EVALUATION, CHECKPOINT, EPOCH, END = "step", "evaluation", "checkpoint", "epoch", "end"
_NAME = re.compile(r"rank-(\d+)\.from-(\d+)(\.stages)?\.arrow")
_MOST_RANKS = 1 << 20
_WHOLE_STEPS = 1 << 15  # so many steps are recorded one by one, in about 2 MB


class Row(NamedTuple):
    """One step, or another activity, of one rank."""

    # ``step``, ``evaluation``, ``checkpoint``, ``epoch``, which begins, or ``end``, which is the last row of a process
    # that ended by itself
    activity: str
    step: int  # number of the step, from 0; of another activity: steps done before it
    epoch: int
    steps: int  # steps that this row stands for: see `stride`
    started: float  # Unix time when the step asked for its input, or the activity began
    input_seconds: float  # wait for the batch
    gradient_seconds: float  # forward and backward pass, until all gradients of this rank were ready
    collective_seconds: float  # synchronisation of the ranks, with the wait for the slowest
    update_seconds: float  # the optimizer's update, until the step returned
    # The training loop itself took these since the step or activity before; another activity takes no others
    host_seconds: float


class StageRow(NamedTuple):
    """What one stage of a rank's loader did in a time: see `ringfeed.pipeline.StageStats`."""

    dataset: str  # its name in a mixture; empty without one
    stage: str
    started: float  # Unix time
    seconds: float
    items: int
    bytes: int
    busy_seconds: float
    cpu_seconds: float
    wait_seconds: float
    queue_depth: int  # at the end


_TYPES = (pa.string(), pa.int64(), pa.int32(), pa.int32(), pa.float64(), *[pa.float32()] * 5)
SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in zip(Row._fields, _TYPES, strict=True)])
_STAGE_TYPES = (*[pa.string()] * 2, *[pa.float64()] * 2, *[pa.int64()] * 2, *[pa.float64()] * 3, pa.int32())
STAGE_SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=False) for name, kind in zip(StageRow._fields, _STAGE_TYPES, strict=True)]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is the same for all rows of a file: the rank that wrote it, and since when."""

    # The rank's number, and the number of all ranks
    rank: int
    ranks: int
    host: str
    first_step: int  # step with which the process began
    batch_size: int  # samples of a step over all ranks
    total_steps: int

    def metadata(self) -> dict[str, str]:
        return {"format": FORMAT} | {name: str(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes] | None, path: str) -> Launch:
        """Read a launch from the metadata of a file's schema.

        A ConfigError says that another program, or another version, wrote the file; a KeyError or ValueError that it is
        damaged.
        """
        values = {key.decode(): value.decode() for key, value in (metadata or {}).items()}
        if values.pop("format", None) != FORMAT:
            raise ConfigError(f"{path} holds no records of a run in the format {FORMAT}")
        kinds: dict[str, Any] = {name: printable if name == "host" else int for name in cls.__slots__}
        launch = cls(**{name: kind(values[name]) for name, kind in kinds.items()})
        numbers = (launch.rank, launch.ranks, launch.first_step, launch.batch_size, launch.total_steps)
        if not (0 <= launch.rank < launch.ranks <= _MOST_RANKS and launch.batch_size >= 1):
            raise ConfigError(f"{path} is of rank {launch.rank} of {launch.ranks}, in batches of {launch.batch_size}")
        if min(numbers) < 0 or max(numbers) >= 1 << 53:
            raise ConfigError(f"{path} has numbers that no run has: {numbers}")
        return launch


def file_name(rank: int, first_step: int, *, of_stages: bool = False) -> str:
    """Name the file of a rank that starts at a step, or the one of its loader's stages.

    >>> file_name(3, 120), file_name(3, 120, of_stages=True)
    ('rank-00003.from-00000120.arrow', 'rank-00003.from-00000120.stages.arrow')
    """
    return f"rank-{rank:05d}.from-{first_step:08d}{'.stages' * of_stages}.arrow"


def first_step_of(name: str) -> tuple[int, int] | None:
    """Return rank and first step of a file, from its name; None for a file of another kind.

    >>> first_step_of("rank-00003.from-00000120.arrow"), first_step_of("metrics.json")
    ((3, 120), None)
    """
    match = _NAME.fullmatch(name)
    return match and (int(match[1]), int(match[2]))


def stride(step: int, done: int) -> int:
    """Return how many steps the row of a step stands for; 0 if it is left out.

    The first `_WHOLE_STEPS` of a process are all recorded; of the next, twice as many, every second; of the next, four
    times as many, every fourth; and so on: a file grows with the logarithm of a run's length. The golden ratio spreads
    the recorded steps evenly (Knuth, The Art of Computer Programming 3, 6.4), and keeps no rhythm with the epochs. All
    ranks record the same steps.

    Args:
        step: number of the step.
        done: steps of this process before it.

    >>> stride(7, 7), {stride(step, step) for step in range(40_000, 41_000)}
    (1, {0, 2})
    >>> sum(stride(step, step) for step in range(1_000_000)), sum(stride(step, step) > 0 for step in range(1_000_000))
    (999984, 162851)
    """
    power = (done // _WHOLE_STEPS + 1).bit_length() - 1
    kept = (step * 0x9E3779B97F4A7C15) % (1 << 64) < (1 << 64) >> power
    return (1 << power) * kept
