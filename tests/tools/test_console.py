"""How far a job is, as bars on a terminal."""

import pytest
from rich.progress import Progress

from ringfeed.tools import console


def test_the_time_that_a_bar_takes_to_appear_counts_for_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work goes on meanwhile: small datasets were verified at 90 GiB/s."""
    now = 0.0

    class SlowTerminal(Progress):
        def add_task(self, *args: object, **options: object) -> object:
            nonlocal now
            now += 2.0
            return super().add_task(*args, **options)

    monkeypatch.setattr(console, "monotonic", lambda: now)
    bars = SlowTerminal(disable=True)
    monkeypatch.setattr(console, "_bars", lambda: bars)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with console.stage_progress({}, in_bytes=("verify",)) as show:
        show("verify", 0, 2, 0)
        show("verify", 2, 2, 4096)
    assert bars.tasks[0].fields["rate"] == "2.0 KiB/s"
