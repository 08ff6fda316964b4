"""Every notebook runs from top to bottom, and is kept without the outputs of someone's run."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="the extra `test` is not installed")
nbclient = pytest.importorskip("nbclient", reason="the extra `test` is not installed")

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == ["io_profiling.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_neither_outputs_nor_logic(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert not [cell for cell in cells if cell.outputs or cell.execution_count]
    assert not [cell for cell in cells if re.search(r"^\s*(def|class|lambda)\b", cell.source, re.MULTILINE)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of jupyter_client and its event loops, not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where it builds its dataset
    notebook = read(path)
    client = nbclient.NotebookClient(
        notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    asyncio.run(client.async_execute())
    text = str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
    assert "bottleneck: " in text
    assert "LoaderPlan(" in text
    assert "samples/s" in text
