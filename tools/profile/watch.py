"""Follow a run under way: its profile, read anew each second."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from rich.console import Group
from rich.live import Live
from rich.text import Text

from ringfeed.sharding.messages import printable
from ringfeed.tools.console import SafeConsole, print_stderr
from ringfeed.tools.measure.run_records import NoStepsError, RunRecords, holds_records, read_run
from ringfeed.tools.report.run_result import RunProfile, profile_records

_RECENT_SECONDS = 30.0  # of steps that the shown verdict is about


def follow(
    folder: str, check: Callable[[], None], *, pause_seconds: float = 1.0, silent_seconds: float = 30.0
) -> RunRecords:
    """Show the last 30 s of a run until it ends or was killed, and return all its records.

    Args:
        folder: folder of the records, which may not be there yet.
        check: called at each look; what it raises ends this.
        pause_seconds: between two looks.
        silent_seconds: a run without a sign of any rank for longer was killed.

    Raises:
        ConfigError: a file is damaged or forged, or another version wrote it.
    """
    console, pause, printed = SafeConsole(stderr=True, highlight=False), Event(), ""
    clock = _SignsOfLife(folder)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            check()
            records = _read(folder)
            is_over = records is not None and (records.ended or clock.silent_seconds() > silent_seconds)
            if records is not None and is_over:
                return records
            text = f"waiting for the first steps in {printable(folder)}" if records is None else _view(records)
            if console.is_terminal:
                live.update(Group(Text(text)), refresh=True)
            elif (line := text.splitlines()[0]) != printed:
                print_stderr(line)
                printed = line
            pause.wait(pause_seconds)


def _read(folder: str) -> RunRecords | None:
    """The records of a run that has done a step; None if it has not."""
    if not holds_records(folder):
        return None
    try:
        records = read_run(folder)
    except NoStepsError:
        return None
    return records if records.steps.size or records.ended else None


def _view(records: RunRecords) -> str:
    recent: RunProfile = profile_records(records.last(_RECENT_SECONDS))
    step = f"step {recent.last_step} of {recent.total_steps}, {recent.samples_per_second:,.0f} samples/s"
    return f"{step}: {recent.verdict.headline}\n\n{recent}"


class _SignsOfLife:
    """How long no rank has renewed its file, by this machine's clock: those of other hosts may differ."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._newest, self._since = 0, time.monotonic()

    def silent_seconds(self) -> float:
        """Seconds since the newest file last changed."""
        newest = max((path.stat().st_mtime_ns for path in self._folder.glob("rank-*")), default=0)
        if newest != self._newest:
            self._newest, self._since = newest, time.monotonic()
        return time.monotonic() - self._since
