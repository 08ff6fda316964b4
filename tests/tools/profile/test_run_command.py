"""`ringfeed profile FOLDER` on the records of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ringfeed.tools.cli import main

Write = Callable[..., str]
STEPS = 60


@pytest.fixture
def slow_run(write_run: Write) -> str:
    """Records of three ranks, of which rank 1 takes longest."""
    gradients = np.full((3, STEPS), 0.05)
    gradients[1] = 0.08
    return write_run(np.full((3, STEPS), 0.001), gradients)


def test_a_folder_of_records_is_recognised(slow_run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", slow_run]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert (
        lines[0]
        == "The ranks wait for rank 1 for 37% of the time; 61% computing, 1% waiting for input, 1% in the all-reduce."
    )
    assert lines[1].startswith(
        f"{slow_run}: 3 ranks, steps 1 to 59 of 120: 365 samples/s over 4.8 s; the first batch came"
    )
    assert lines[1].endswith("besides, 2.0 s of evaluation and 1.0 s of checkpoints")
    header = ["rank", "input ms", "compute ms", "waits for others ms", "collective ms", "loop ms", "last in", "host"]
    assert re.split("  +", lines[3]) == header
    assert lines[5].split() == ["1", "1.00", "80.00", "0.00", "1.00", "0.10", "100%", "node"]
    assert lines[-1].startswith("bottleneck: straggler: rank 1 on node: 30.0 ms a step later than the others")
    assert printed.err == ""


def test_json_page_and_trace(slow_run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    files = ["--html", str(tmp_path / "page.html"), "--trace", str(tmp_path / "trace.json")]
    assert main(["profile", slow_run, "--json", *files]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["verdict"]["bottleneck"], result["verdict"]["stragglers"]) == ("straggler", [1])
    assert [each["rank"] for each in result["rank_times"]] == [0, 1, 2]
    assert len(json.loads((tmp_path / "trace.json").read_text())["traceEvents"]) > 5 * 3 * (STEPS - 1)
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 3
    for title in ("The ranks wait for rank 1 for 37% of the time", "Rank 1 is latest on average: the last in 100%"):
        assert title in page
    assert not re.search(r"(src|href)=\"http", page)


def test_records_of_other_hosts_that_are_missing_are_named(slow_run: str, capsys: pytest.CaptureFixture[str]) -> None:
    next(Path(slow_run).glob("rank-00001*")).unlink()
    assert main(["profile", slow_run]) == 0
    assert "there are no records of rank 1: put the files of all hosts into one folder" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "--set", "epochs=1"], "--set is not for a run's records"),
        (["RUN", "--batch-size", "8"], "--batch-size is not for a run's records"),
        (["/absent", "--trace", "t.json"], "--watch and --trace are for a run's records: name their folder"),
        (["/absent", "--trace", "t.json", "--transform", "m:f"], "--watch and --trace are for a run's records"),
        (["--config", "x.yaml", "--watch"], "--watch and --trace are for a run's records"),
        (["--config", "x.yaml", "--rank", "1"], "--rank is not for --config, whose file has all options"),
    ],
)
def test_what_does_not_fit_is_refused(
    slow_run: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *(slow_run if word == "RUN" else word for word in arguments)]) == 1
    assert capsys.readouterr().err.startswith(f"ringfeed: error: {message}")


def test_files_of_another_program_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa

    path = tmp_path / "rank-00000.from-00000000.arrow"
    with pa.ipc.new_stream(str(path), pa.schema([("x", pa.int64())])):
        pass
    assert main(["profile", str(tmp_path)]) == 1
    assert f"{path} holds no records of a run in the format ringfeed-records-1" in capsys.readouterr().err
