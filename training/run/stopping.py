"""How a run ends that is asked to stop: after a step that all ranks agree on, with a checkpoint if it keeps any."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ringfeed.training.config.checks import duration_seconds

INTERRUPTED = 130  # exit status: 128 + SIGINT
RESUMABLE = 75  # exit status: EX_TEMPFAIL of sysexits.h, "the user is invited to retry"
TERMINATED = 143  # exit status: 128 + SIGTERM


class Stopped(Exception):
    """The run was asked to stop, on any rank, and every rank has stopped after the same step.

    This process has resumed from `first_step`. `url` is where the checkpoint is, None if the run keeps none, `max_time`
    the time that was over, None if a signal came. `status` is the exit status.
    """

    def __init__(self, step: int, first_step: int, url: str | None, max_time: str | float | None = None) -> None:
        self.status = TERMINATED if url is None else RESUMABLE
        if max_time is not None:
            self.status = 0
            kept = f"the checkpoint of step {step} is in {url}: the same command resumes"
            text = f"stopped after max_time={max_time}; {kept}"
        elif url is None:
            text = (
                f"stopped by SIGTERM after step {step}; the {step - first_step} steps of this run are lost, since "
                "checkpoint.url is null"
            )
        else:
            text = f"stopped by SIGTERM; the checkpoint of step {step} is in {url}: the same command resumes"
        super().__init__(text)


class StopRequest:
    """Whether this rank asks to stop: by a signal, which `check` finds, or since the time of the run is over."""

    def __init__(self, check: Callable[[], bool], max_time: str | float | None) -> None:
        self._check = check
        seconds = math.inf if max_time is None else duration_seconds(max_time)
        assert seconds is not None  # `TrainConfig` has checked it
        self._deadline = time.monotonic() + seconds
        self.is_signalled = False

    def __call__(self) -> bool:
        self.is_signalled = self._check() or self.is_signalled
        return self.is_signalled or time.monotonic() >= self._deadline
