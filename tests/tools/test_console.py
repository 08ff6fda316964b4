"""Progress bars on a terminal."""

import logging
import re
from pathlib import Path

import pytest
from rich.progress import Progress

from ringfeed.tools import console
from ringfeed.tools.shard_dataset.program import main


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


def test_without_a_terminal_a_line_says_how_long_it_still_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(console, "monotonic", lambda: now)
    with console.stage_progress({"write": "write shards"}) as show:
        for seconds, done in [(0.0, 0), (3.0, 10), (10.0, 25), (12.0, 30), (20.0, 80), (25.0, 100)]:
            now = seconds
            show("write", done, 100, done * 100)
    assert capsys.readouterr().err.splitlines() == [
        "write shards: 25 of 100, 250 records/s, about 30.0 s left",
        "write shards: 80 of 100, 400 records/s, about 5.0 s left",
        "write shards: 100 of 100, 400 records/s",
    ]


@pytest.mark.parametrize("verbose", [False, True])
def test_details_are_printed_if_asked_for(capsys: pytest.CaptureFixture[str], verbose: bool) -> None:
    logger = logging.getLogger("ringfeed.sharding.storage.retry")
    for events in (False, True):
        with console.print_warnings("shard-dataset", events=events, verbose=verbose):
            logger.info("trying again")
            logger.warning("giving up")
    expected = [
        "shard-dataset: trying again",
        "shard-dataset: warning: giving up",
        '{"event": "info", "message": "trying again"}',
        '{"event": "warning", "message": "giving up"}',
    ]
    assert capsys.readouterr().err.splitlines() == (expected if verbose else expected[1::2])


def test_a_quiet_command_prints_its_result_alone(
    source: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["build", source, str(tmp_path / "d"), "--label", "status", "--shards", "2"]
    assert main([*words, "--quiet"]) == 0
    assert "wrote" in (said := capfd.readouterr()).out
    assert said.err == ""
    assert main([*words, "-q", "--json", "--overwrite"]) == 0
    assert capfd.readouterr().err == ""
