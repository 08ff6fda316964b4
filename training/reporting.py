"""What a run tells while it trains: a progress bar or plain lines.

Only rank 0 reports; every rank's warnings are logged with its number.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Reporter", "configure_logging"]

log = logging.getLogger(__name__)

QUIET_SECONDS = 15.0  # the longest that plain lines leave open whether a run of slow steps still goes on


def configure_logging(rank: int) -> None:
    """Log to standard error: everything from rank 0, warnings and errors, with the rank, from the others."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s" if rank == 0 else f"rank {rank}: %(message)s"))
    logger = logging.getLogger("ringfeed")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    logger.propagate = False


class Reporter:
    """Shows a run's progress and collects its history.

    Args:
        is_chief: whether this is rank 0; the others collect and show nothing.
        total_steps: of the whole run.
        done_steps: before this process began.
    """

    def __init__(self, *, is_chief: bool, total_steps: int, done_steps: int) -> None:
        self._is_chief = is_chief
        self._total = total_steps
        self.steps: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self._bar: Progress | None = None
        self._told = time.monotonic()
        if is_chief and sys.stderr.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("", total=total_steps, completed=done_steps)
            self._bar.start()

    def close(self) -> None:
        """Take the progress bar off the screen."""
        if self._bar:
            self._bar.stop()
            self._bar = None

    def begin(self, epoch: int, step: int, batch_size: int, ranks: int) -> None:
        """Say what is to come, since the first step, and the other ranks, may keep one waiting."""
        if self._is_chief and not self._bar:
            over = "" if ranks == 1 else f" over {ranks} ranks"
            self._tell(
                f"epoch {epoch}  step {step}/{self._total}  begins with {batch_size} samples a step{over}; "
                "the first step compiles, and takes longest"
            )

    def advance(self, epoch: int, step: int) -> None:
        """Move the bar to a step; without one, name the step if nothing was told for long."""
        if self._bar:
            self._bar.update(self._task, completed=step)
        elif self._is_chief and time.monotonic() - self._told >= QUIET_SECONDS:
            self._tell(f"epoch {epoch}  step {step}/{self._total}")

    def _tell(self, text: str) -> None:
        log.info(text)
        self._told = time.monotonic()

    def add_steps(self, entry: dict[str, Any]) -> None:
        """Take in the entry of some steps, as `Trainer` makes it."""
        if not self._is_chief:
            return
        self.steps.append(entry)
        text = (
            f"epoch {entry['epoch']}  step {entry['step']}/{self._total}  loss {entry['loss']:.4f}  "
            f"lr {entry['learning_rate']:.3g}"
        )
        if entry["samples_per_second"]:  # 0 if all steps were the first, which compiles
            text += f"  {entry['samples_per_second']:,.0f} samples/s  input wait {entry['input_wait_fraction']:.0%}"
        if self._bar:
            self._bar.update(self._task, description=text)
        else:
            self._tell(text)

    def add_evaluation(self, entry: dict[str, Any]) -> None:
        """Take in an evaluation."""
        if not self._is_chief:
            return
        self.evaluations.append(entry)
        auc = "" if entry["auc"] is None else f"  AUC {entry['auc']:.4f}"
        text = (
            f"epoch {entry['epoch']}  evaluated {entry['samples']:,} samples: loss {entry['loss']:.4f}  "
            f"accuracy {entry['accuracy']:.4f}  balanced accuracy {entry['balanced_accuracy']:.4f}{auc}"
        )
        if self._bar:
            self._bar.console.print(text, highlight=False)
        else:
            self._tell(text)

    def history(self) -> dict[str, Any]:
        """All entries so far, as JSON can hold them."""
        return {"steps": self.steps, "evaluations": self.evaluations}

    def restore(self, history: Mapping[str, Any]) -> None:
        """Begin with the entries of the run's earlier processes."""
        if self._is_chief:
            self.steps = list(history["steps"])
            self.evaluations = list(history["evaluations"])
