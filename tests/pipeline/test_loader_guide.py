"""The snippets of docs/loader.md run one after the other, as a reader would run them.

That of PyTorch runs in tests/helpers/torch_checks.py.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.helpers.lean import lean_environment

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "loader.md"


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_every_snippet_runs(make_dataset: Callable[..., str], tmp_path: Path) -> None:
    runnable = [text for text in snippets() if "import torch" not in text]
    assert len(runnable) == len(snippets()) - 1
    program = "\n".join([f"DST = {make_dataset(1000, shard_format='parquet')!r}", *runnable])
    command, env = [sys.executable, "-c", program], lean_environment()
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search("^deliver [1-9][0-9]* ", done.stdout, re.MULTILINE), done.stdout
