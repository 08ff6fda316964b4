"""`shard-dataset build --source`: records from a user's function."""

import json
import sys
from pathlib import Path

import pytest

from ringfeed.sharding import open_dataset
from ringfeed.tools.shard_dataset.program import main
from tests.helpers.commands import Cli

CODE = """
def records():
    return ({"x": i, "y": "ab"[i % 2]} for i in range(40))

def broken():
    yield {"x": 1}
    yield {"x": 1 / 0}
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "ringfeed_cli_records", raising=False)
    (tmp_path / "ringfeed_cli_records.py").write_text(CODE)


@pytest.mark.parametrize(
    "words",
    [
        ["--source", "ringfeed_cli_records:records", "out", "--label", "y"],
        ["out", "--label", "y", "--source=ringfeed_cli_records:records"],
        ["--label", "y", "--source-kind", "python", "--source", "ringfeed_cli_records:records", "out"],
        ["ringfeed_cli_records:records", "--label", "y", "out", "--source-kind", "python"],
    ],
)
def test_a_function_takes_the_place_of_src(words: list[str]) -> None:
    assert main(["build", *words, "--shards", "2", "--workers", "1", "--json"]) == 0
    dataset = open_dataset("out")
    assert dataset.manifest.classes == ("a", "b")
    assert dataset.manifest.source["url"] == "ringfeed_cli_records:records"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "a:b", "src", "dst"], "--source takes the place of SRC, so give DST alone; got src and dst"),
        (["src", "--source", "a:b", "dst"], "--source takes the place of SRC, so give DST alone; got src and dst"),
        (["--source", "a:b"], "the following arguments are required: DST"),
        (["--source", "a:b", "dst", "--source-kind", "csv"], "--source is of kind python, got --source-kind csv"),
        (["--source", "a:b", "dst", "--nothing"], "unrecognized arguments: --nothing"),
        (["src", "dst", "more"], "unrecognized arguments: more"),
        (["dst"], "the following arguments are required: DST"),
        (["src", "dst", "--nothing", "x"], "shard-dataset build --help"),
    ],
)
def test_wrong_usage_is_reported(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["build", *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_an_error_in_the_function_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["build", "--source", "ringfeed_cli_records:broken", "out"]
    assert main(words) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    expected = f"{tmp_path}/ringfeed_cli_records.py:7: ZeroDivisionError: division by zero"
    assert line.startswith(f"shard-dataset: error: {expected}")
    assert not Path("out").exists()
    with pytest.raises(ValueError, match="division by zero") as caught:
        main([*words, "--debug"])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("more", [["--workers", "1"], ["--workers", "2"], ["--workers", "1", "--dry-run"]])
def test_output_of_user_functions_stays_out_of_the_document(installed: Cli, tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "noisy.py").write_text(
        "import subprocess\nprint('imported')\n"
        "def records():\n    print('asked')\n    return ({'x': i} for i in range(40))\n"
        "def mapped(batch):\n    print('mapped')\n    subprocess.run(['echo', 'echoed'])\n    return batch\n"
    )
    words = ["--source", "noisy:records", "out", "--map", "noisy:mapped", "--shards", "2", "--json", *more]
    done = installed("shard-dataset", "build", *words, check=True)
    document = json.loads(done.stdout)
    assert document["splits"]["train"]["records"] == 40
    assert {"imported", "asked", "mapped", "echoed"} <= set(done.stderr.splitlines())


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(("given", "threads"), [({}, 1), ({"OPENBLAS_NUM_THREADS": "2"}, 2)])
def test_linear_algebra_has_one_thread_per_process(
    installed: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str, given: dict[str, str], threads: int
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    (tmp_path / "algebra.py").write_text(
        "import os\ndef mapped(batch):\n    print('threads', os.environ['OPENBLAS_NUM_THREADS'])\n    return batch\n"
    )
    words = [
        "--source",
        "ringfeed_cli_records:records",
        "out",
        "--map",
        "algebra:mapped",
        "--workers",
        workers,
        "--json",
    ]
    done = installed("shard-dataset", "build", *words, env=given, check=True)
    assert {line for line in done.stderr.splitlines() if line.startswith("threads")} == {f"threads {threads}"}
