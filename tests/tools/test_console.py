"""Progress bars on a terminal."""

import re

import pytest
from rich.progress import Progress

from ringfeed.tools import console


def test_the_rate_counts_the_time_that_a_bar_takes_to_appear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work continues meanwhile: small datasets seemed to be verified at 90 GiB/s."""
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


@pytest.mark.parametrize(
    ("width", "rate", "time"), [(80, True, True), (64, True, True), (63, False, True), (30, False, False)]
)
def test_counts_are_shown_however_narrow_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, rate: bool, time: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with console.stage_progress({"write": "write shards"}) as show:
        show("write", 0, 12000, 0)
        show("write", 12000, 12000, 3_000_000)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err).splitlines()[-1]
    assert re.match("write shards ━+ 12000/12000( |$)", last), last
    assert ("records/s" in last, bool(re.search(r"\b\d:\d\d:\d\d\b", last))) == (rate, time)
    assert len(last) <= width
