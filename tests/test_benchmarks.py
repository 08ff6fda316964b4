"""The benchmarks are in one list, and call no private name of ringfeed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def test_each_benchmark_of_the_list_has_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import run

    sys.modules.pop("run")
    listed = set()
    for benchmark in run.BENCHMARKS.values():
        module, name = benchmark.function.split(":")
        path = FOLDER / f"{module.replace('.', '/')}.py"
        assert name in {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        listed.add(path)
    unlisted = {path for folder in (FOLDER, FOLDER / "train") for path in folder.glob("*.py")} - listed
    assert {path.name for path in unlisted} == {"run.py", "__init__.py"}


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_no_benchmark_reaches_into_private_names(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ringfeed"):
            assert not [alias.name for alias in node.names if alias.name.startswith("_")]
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value)
            assert owner in ("self", "benchmark"), f"{path.name}:{node.lineno}"  # `benchmark` is DLIO's
