import gc
import subprocess
import sys
from importlib import import_module

import pytest

from ringfeed.pipeline.deliver.quiet_tensorflow import uncollected_imports

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
