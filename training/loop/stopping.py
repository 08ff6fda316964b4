"""How a run ends that is asked to stop: after a step that all ranks agree on, with a checkpoint if it keeps any."""

from __future__ import annotations

__all__ = ["RESUMABLE", "TERMINATED", "Stopped"]

RESUMABLE = 75  # exit status: EX_TEMPFAIL of sysexits.h, "the user is invited to retry"
TERMINATED = 143  # 128 + SIGTERM


class Stopped(Exception):
    """The run was asked to stop, on any rank, and every rank has stopped after the same step.

    Args:
        step: number of steps done.
        first_step: number of steps that this process resumed from.
        url: where the checkpoint of `step` is; None if the run keeps none.

    Attributes:
        status: the exit status, `RESUMABLE` or `TERMINATED`.
    """

    def __init__(self, step: int, first_step: int, url: str | None) -> None:
        self.status = TERMINATED if url is None else RESUMABLE
        if url is None:
            text = (
                f"stopped by SIGTERM after step {step}; the {step - first_step} steps of this run are lost, since "
                "checkpoint.url is null"
            )
        else:
            text = f"stopped by SIGTERM; the checkpoint of step {step} is in {url}: the same command resumes"
        super().__init__(text)
