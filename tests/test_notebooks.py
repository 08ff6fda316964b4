"""Every notebook runs from top to bottom, and is kept without the outputs of someone's run."""

import asyncio
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ringfeed.sharding import BuildOptions, build
from tests.helpers.lean import calm_ranks
from tests.servers.web import Behaviour, served

Config = pytest.importorskip("traitlets.config", reason="the extra `test` is not installed").Config
nbformat = pytest.importorskip("nbformat", reason="the extra `test` is not installed")
nbclient = pytest.importorskip("nbclient", reason="the extra `test` is not installed")

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
SHOWN = {  # plots, and texts of outputs
    "io_profiling": (
        13,
        (
            "bottleneck: ",
            "Balance: 8 shards",
            "step alone",
            "The shuffle: ",
            "Classes of each batch.",
            "% balanced",
            "Each class: share of the records",
            "Predicted by streams: ",
            "Predicted: 64 ranks reach ",
            "By cache: ",
            "The slowest part is ",
        ),
    ),
    "training_run": (
        8,
        (
            "The loss ends at ",
            "The learning rate: ",
            "Recall by class: ",
            "2 ranks: ",
            "Training waited",
            "bottleneck: ",
            "is latest on average: ",
            "The longest part of a step is ",
        ),
    ),
}


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == ["io_profiling.ipynb", "training_run.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_neither_outputs_nor_logic(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert not [cell for cell in cells if cell.outputs or cell.execution_count]
    written = [
        line for cell in cells for line in re.findall(r"^\s*(?:def|class|lambda)\b.*", cell.source, re.MULTILINE)
    ]
    assert [line for line in written if "your own" not in line] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of jupyter_client and its event loops, not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = read(path)
    for cell in notebook.cells:
        cell.source = cell.source.replace("seconds = 4 ", "seconds = 0.4 ")
    with TemporaryDirectory() as sockets:  # whose paths must be short; a port may be taken before the kernel binds it
        for name, value in {"TMPDIR": str(tmp_path), **calm_ranks()}.items():  # it builds its dataset there
            monkeypatch.setenv(name, value)
        client = nbclient.NotebookClient(
            notebook,
            timeout=180, startup_timeout=280, iopub_timeout=170, raise_on_iopub_timeout=True, kernel_name="python3",
            config=Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}}),
            resources={"metadata": {"path": str(tmp_path)}},
        )  # fmt: skip
        asyncio.run(client.async_execute())
    text = str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
    plots, titles = SHOWN[path.stem]
    assert text.count("'image/svg+xml'") >= plots
    for title in titles:
        assert title in text
    assert "stderr" not in text


def test_the_profile_runs_on_a_small_dataset_of_ones_own_on_a_store(tmp_path: Path) -> None:
    names = "\n".join(f"{number},{'ab'[number % 2]}" for number in range(300))
    (tmp_path / "source.csv").write_text(f"x,label\n{names}\n")
    build(BuildOptions(source=str(tmp_path / "source.csv"), destination=str(tmp_path / "shards"), label="label"))
    path = next(path for path in NOTEBOOKS if path.stem == "io_profiling")
    variables: dict[str, Any] = {}
    with served(tmp_path / "shards", behaviour=Behaviour(latency_seconds=0.005)) as url:
        for number, cell in enumerate(cell for cell in read(path).cells if cell.cell_type == "code"):
            settings = {"url = None": f"url = {url!r}", "seconds = 4 ": "seconds = 0.4 "}
            for old, new in settings.items() if number == 0 else ():
                assert old in cell.source
                cell.source = cell.source.replace(old, new)
            exec(cell.source, variables)
    assert variables["sizes"] == [64, 256]
    assert variables["training"].training.step.samples > 0
