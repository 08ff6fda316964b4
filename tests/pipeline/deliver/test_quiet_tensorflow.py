import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest

from ringfeed.pipeline.deliver.quiet_tensorflow import hidden_packages, uncollected_imports


def test_a_hidden_package_is_missing_in_the_body_alone():
    sys.modules.pop("colorsys", None)
    with hidden_packages(["colorsys"]):
        with pytest.raises(ModuleNotFoundError, match="colorsys"):
            import_module("colorsys")
        import_module("sched")
    assert import_module("colorsys").hsv_to_rgb


def test_other_threads_and_loaded_packages_see_nothing_of_it():
    sys.modules.pop("colorsys", None)
    with hidden_packages(["colorsys", "json"]), ThreadPoolExecutor() as pool:
        assert import_module("json").loads("1") == 1
        assert pool.submit(import_module, "colorsys").result().hsv_to_rgb
    assert all(type(finder).__name__ != "_Hiding" for finder in sys.meta_path)


def test_imports_are_not_collected_and_never_scanned_again_even_if_one_fails():
    before = gc.get_freeze_count()
    with uncollected_imports():
        assert not gc.isenabled()
        import_module("colorsys")
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError), uncollected_imports():
        import_module("no_such_module")
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    gc.unfreeze()
