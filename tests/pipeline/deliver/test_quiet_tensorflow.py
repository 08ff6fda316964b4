import gc
from importlib import import_module

import pytest

from ringfeed.pipeline.deliver.quiet_tensorflow import uncollected_imports


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
