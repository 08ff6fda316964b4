"""Names from data may hold anything; no message or report brings a control character of theirs to the terminal."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import RingfeedError
from ringfeed.sharding.messages import listed, printable
from ringfeed.tools.console import align, print_stderr
from ringfeed.tools.shard_dataset import main

NAMES = (
    "a\x1b[31mb", "a\nb", "a\r\nb", "a\x07", "a\x9b2J", "a\u202eb", "a\u2028b", "a\x00b", "\x1b]0;title\x07", "a\x7f",
    "a\tb", "a\x85b",
)  # fmt: skip
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_printable(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_stderr(f"column {name} is odd")
    texts = [str(RingfeedError(name)), listed([name]), printable(name), capsys.readouterr().err[:-1]]
    texts += align(["x"], [[name]])[1:]
    assert all(text.isprintable() for text in texts), texts
    assert printable(printable(name)) == printable(name)


@pytest.mark.parametrize("name", NAMES)
def test_commands_print_no_control_characters(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = str(tmp_path / "x.parquet"), str(tmp_path / "out")
    column = pa.array([f"{name}{row % 3}" for row in range(60)])
    pq.write_table(pa.table({"x": range(60), name: column}), source)
    build = ["build", source, out, "--label", name, "--workers", "1"]
    commands = [
        [*build[:3], "--label", "absent"],
        [*build, "--filter", f"`{name}` > 1"],
        [*build, "--exclude", "y"],
        [*build, "--dry-run"],
        build,
        build,
        ["inspect", out],
        ["verify", out],
        ["head", out, "--split", "nothing"],
    ]
    for words in commands:
        with contextlib.suppress(SystemExit):
            main(words)
        printed = capsys.readouterr()
        for text in (printed.out, printed.err):
            assert not CONTROL.search(text), (words, text)
        assert len(printed.err.splitlines()) <= 5, (words, printed.err)
