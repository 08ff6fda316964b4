import gc
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from ringfeed.pipeline.deliver.quiet_tensorflow import attach_quietly, uncollected_imports

OWN = """
import gc, sys
from ringfeed.pipeline.deliver.quiet_tensorflow import uncollected_imports
from ringfeed.tools import cli
sys.argv = ["ringfeed", "--version"]
try:
    cli.main(*eval(sys.stdin.read()))
except SystemExit:
    pass
with uncollected_imports():
    import colorsys
print(gc.get_freeze_count() > 10_000, gc.isenabled())
"""


def test_imports_are_not_collected_even_if_one_fails():
    before = gc.get_freeze_count()
    with uncollected_imports():
        assert not gc.isenabled()
        import_module("colorsys")
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError), uncollected_imports():
        import_module("no_such_module")
    assert gc.isenabled()
    assert gc.get_freeze_count() <= before, "objects of others are frozen"  # some that were frozen may die


@pytest.mark.parametrize(("arguments", "is_frozen"), [("[]", True), ("[['--version']]", False)])
def test_a_command_looks_never_again_at_what_it_imported(arguments: str, is_frozen: bool) -> None:
    done = subprocess.run([sys.executable, "-c", OWN], input=arguments, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{is_frozen} True"


@pytest.mark.parametrize(("level", "shown"), [("", 1), ("0", 3)])
def test_only_the_import_of_a_name_hides_what_tensorflow_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], level: str, shown: int
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)  # what is imported already logs as it will
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    monkeypatch.syspath_prepend(tmp_path)
    name, lines = f"quiet{shown}", [b"I0000 00:00:1.2 3 port.cc:1] on\n", b"To enable the following instructions: X\n"]
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "__init__.pyi").write_text("from .noisy import value")
    (tmp_path / name / "noisy.py").write_text(
        f"import os\nfor line in {[*lines, b'mine']}: os.write(2, line)\nvalue = 3"
    )
    load, _, public = attach_quietly(name, f"{tmp_path}/{name}/__init__.py")
    assert (load("value"), public) == (3, ["value"])
    assert len(capfd.readouterr().err.splitlines()) == shown
    os.write(2, lines[0])
    assert capfd.readouterr().err.encode() == lines[0]
