"""What rank 0 shows of a run while it trains: a progress bar on a terminal, else plain lines.

Warnings of the other ranks are logged with their number.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from ringfeed.sharding.messages import printable

from . import events
from .tracker import Tracker, finite

log = logging.getLogger(__name__)

QUIET_SECONDS = 15.0  # after this long without a line, one shows that a run of slow steps still works

WAIT_FRACTION = 0.2  # from this share on, TensorFlow's profiler says "highly input-bound"
EARLY_FRACTION, EARLY_SECONDS = 0.3, 30.0  # a run that waits more says so while there is time to change it
_BAR_COLUMNS = 23  # columns of a terminal that a bar of 4, the time and spaces take
LEAST_SECONDS = 5.0  # shorter runs are not judged: their waits are start-up


class _EventFormatter(logging.Formatter):
    """Writes each record as one JSON object: its event if it has one, else the message."""

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", {"event": record.levelname.lower(), "message": record.getMessage()})
        return json.dumps(finite(event), default=str)


def configure_logging(rank: int, *, quiet: bool = False, verbose: bool = False, as_json: bool = False) -> None:
    """Log to standard error: everything of rank 0, and warnings and errors of other ranks, with the rank.

    `quiet` leaves rank 0 warnings and errors alone, `verbose` logs everything of every rank. With `as_json` rank 0 logs
    events, one JSON object a line, and shows no progress bar.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(message)s" if rank == 0 else f"rank {rank}: %(message)s")
    handler.setFormatter(_EventFormatter() if as_json and rank == 0 else text)
    logger = logging.getLogger("ringfeed")
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO if rank == 0 and not quiet else logging.WARNING)
    logger.propagate = False


def _progress_bar() -> Progress:
    """A bar with steps done and time left, which shrinks so that they and the text beside it fit into a line."""
    whole = Column(no_wrap=True)
    counts, time_left = MofNCompleteColumn(table_column=whole), TimeRemainingColumn(table_column=whole)
    bar = BarColumn(bar_width=None, table_column=Column(ratio=1))
    left, text = TextColumn("left", table_column=whole), TextColumn(" {task.description}", table_column=whole)
    return Progress(bar, counts, time_left, left, text, console=Terminal(stderr=True))


def metrics_text(entry: Mapping[str, Any]) -> str:
    """Return the single numbers among an evaluation's metrics, as text.

    >>> metrics_text({"step": 9, "loss": 0.5, "balanced_accuracy": 0.75, "recall": {"a": 1.0}, "auc": None, "r2": 1.0})
    'loss 0.5000  balanced accuracy 0.7500  R2 1.0000'
    """
    return "  ".join(_shown(name, value) for name, value in entry.items() if isinstance(value, float))


def _shown(metric: str, value: float) -> str:
    words = [word.upper() if word in ("auc", "rmse", "mae", "r2", "f1") else word for word in metric.split("_")]
    return f"{' '.join(words)} {value:.4f}" if abs(value) < 1000 else f"{' '.join(words)} {value:,.1f}"


class Console(Tracker):
    """Shows a run's progress; the datasets of a mixture, by their URLs, are profiled one by one."""

    label = "the console"

    def __init__(self, mixture: Sequence[str] = ()) -> None:
        self._mixture = mixture
        self._total = 0
        self._seconds = self._waited = 0.0  # this process's steps
        self._earlier_seconds = self._earlier_waited = 0.0  # in earlier processes
        self._has_warned = False
        self._bar: Progress | None = None
        self._last_line = time.monotonic()
        self._begun: tuple[int, float] | None = None  # step and time after the first step, which compiles

    def begin(self, event: events.RunBegan) -> None:
        self._total, entries = event.total_steps, event.history.get("steps", ())
        self._earlier_seconds = sum(entry["seconds"] for entry in entries)
        self._earlier_waited = sum(entry["input_wait_seconds"] for entry in entries)
        logger = logging.getLogger("ringfeed")
        as_json = any(isinstance(handler.formatter, _EventFormatter) for handler in logger.handlers)
        if logger.level <= logging.INFO and sys.stderr.isatty() and not as_json:
            self._bar = _progress_bar()
            self._task = self._bar.add_task("", total=self._total, completed=event.first_step)
            self._bar.start()
        if event.first_step >= self._total:
            return
        if self._bar:
            self._describe(["the first step compiles, and takes longest"])
        else:
            over = "" if event.ranks == 1 else f" over {event.ranks} ranks"
            self._log(
                f"epoch {event.epoch}  step {event.first_step}/{self._total}  starts with {event.batch_size} samples "
                f"per step{over}; the first step compiles, and takes longest"
            )

    def close(self, event: events.RunEnded) -> None:
        """Take the progress bar off the screen, and warn if the whole run waited for its input too long."""
        if self._bar:
            self._bar.stop()
            self._bar = None
        seconds, waited = self._earlier_seconds + self._seconds, self._earlier_waited + self._waited
        if event.is_finished and seconds >= LEAST_SECONDS and waited >= WAIT_FRACTION * seconds:
            self._warn_once(waited / seconds)

    def step(self, event: events.StepDone) -> None:
        """Move the bar to a step; without a bar, log the step if nothing was logged for `QUIET_SECONDS`."""
        step = event.step
        self._begun = self._begun or (step, time.monotonic())
        if self._bar:
            self._bar.update(self._task, completed=step)
        elif time.monotonic() - self._last_line >= QUIET_SECONDS:
            text = f"epoch {event.epoch}  step {step}/{self._total}{self._time_left(step)}"
            self._log(text, "progress", stage="train", done=step, total=self._total, epoch=event.epoch)

    def _time_left(self, step: int) -> str:
        """The time that the rest of the run takes at the present rate, as text; empty if there is no rate yet."""
        first, begun = self._begun or (step, 0.0)
        if not first < step < self._total:
            return ""
        seconds = (time.monotonic() - begun) / (step - first) * (self._total - step)
        return f"  {timedelta(seconds=round(seconds))} left"

    def _log(self, text: str, event: str = "info", **fields: Any) -> None:
        log.info(text, extra={"event": {"event": event, **(fields or {"message": text})}})
        self._last_line = time.monotonic()

    def steps(self, event: events.StepsLogged) -> None:
        entry = event.entry
        self._seconds += entry.get("seconds", 0.0)
        self._waited += entry.get("input_wait_seconds", 0.0)
        if self._seconds >= EARLY_SECONDS and self._waited > EARLY_FRACTION * self._seconds:
            self._warn_once(self._waited / self._seconds)
        loss, rate = [f"loss {entry['loss']:.4f}"], [f"lr {entry['learning_rate']:.3g}"]
        speed = []
        if entry["samples_per_second"]:  # 0 if the only step was the first, which compiles
            speed = [f"{entry['samples_per_second']:,.0f} samples/s", f"input wait {entry['input_wait_fraction']:.0%}"]
        if "padding_fraction" in entry:
            speed.append(f"padding {entry['padding_fraction']:.0%}")
        if self._bar:  # which shows steps and time itself; the last parts give way on a narrow terminal
            self._describe([*loss, *speed, *rate, f"epoch {entry['epoch']}"])
        else:
            place = [f"epoch {entry['epoch']}", f"step {entry['step']}/{self._total}"]
            text = "  ".join([*place, *loss, *rate, *speed]) + self._time_left(entry["step"])
            self._log(text, "progress", stage="train", done=entry["step"], total=self._total, **entry)

    def _describe(self, parts: Sequence[str]) -> None:
        """Show beside the bar as many parts of a text as have room, at least the first."""
        assert self._bar is not None
        room = self._bar.console.width - _BAR_COLUMNS - 2 * len(str(self._total))
        while len(parts) > 1 and len("  ".join(parts)) > room:
            parts = parts[:-1]
        self._bar.update(self._task, description="  ".join(parts))

    def begin_evaluation(self, event: events.EvaluationBegan) -> None:
        if self._bar:
            self._describe(["evaluating"])

    def evaluation(self, event: events.EvaluationDone) -> None:
        entry = event.entry
        self._say(
            f"epoch {entry['epoch']}  evaluated {entry['samples']:,} samples: {metrics_text(entry)}",
            "evaluation",
            **entry,
        )
        for name, own in entry.get("datasets", {}).items():  # a mixture
            self._say(f"epoch {entry['epoch']}    {name}: {own['samples']:,} samples: {metrics_text(own)}")

    def _say(self, text: str, event: str = "info", **fields: Any) -> None:
        if self._bar:
            self._bar.console.print(printable(text), markup=False, highlight=False)
        else:
            self._log(text, event, **fields)

    def stop_early(self, event: events.StoppedEarly) -> None:
        self._total, best = event.step, event.best
        of = "" if best is None else f"; the best is step {best['step']}: {metrics_text(best)}"
        text = f"stopped early after step {event.step}: {event.reason}{of}"
        self._say(text, "stopped_early", step=event.step, reason=event.reason, best=best)

    def _warn_once(self, fraction: float) -> None:
        if not self._has_warned:
            option = f"{shlex.quote(self._mixture[0])}, and so each dataset" if self._mixture else "--config FILE"
            log.warning(
                "training waited for its input for %.0f%% of the time; to learn why: ringfeed profile %s",
                100 * fraction,
                option,
            )
        self._has_warned = True
