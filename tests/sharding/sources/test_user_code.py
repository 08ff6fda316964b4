"""The hash of user code: which modules it covers."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.prepare import MapBatches, PrepareOptions
from ringfeed.sharding.sources.records.python_function import IterableSource
from ringfeed.sharding.sources.user_code import code_hash

_numbers = itertools.count()
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes files of modules into a folder that is looked in, and returns the name of the package that they make."""
    before = set(sys.modules)
    package = f"user_code_{next(_numbers)}"
    monkeypatch.syspath_prepend(tmp_path)

    def files(**texts: str) -> str:
        (tmp_path / package).mkdir(exist_ok=True)
        for name, text in {"__init__": "", **texts}.items():
            (tmp_path / package / f"{name}.py").write_text(text.replace("PACKAGE", package))
        importlib.invalidate_caches()
        return package

    yield files
    for name in set(sys.modules) - before:
        del sys.modules[name]


def hash_of(name: str) -> str:
    importlib.import_module(name)
    return code_hash(name)


@pytest.mark.parametrize(
    "line",
    [
        "import PACKAGE.helper",
        "import json, PACKAGE.helper as other",
        "from PACKAGE import helper",
        "from PACKAGE.helper import VALUE",
        "from PACKAGE.helper import *",
        "from . import helper",
        "from .helper import VALUE",
        "def f():\n    from . import helper",
        "from . import between",
    ],
)
def test_a_module_that_is_imported_counts(line: str, write: Write) -> None:
    package = write(main=line, between="from .helper import VALUE", helper="VALUE = 1", other="VALUE = 1")
    hashes = [hash_of(f"{package}.main")]
    write(other="VALUE = 2")
    assert code_hash(f"{package}.main") == hashes[0]
    write(helper="VALUE = 2")
    assert code_hash(f"{package}.main") != hashes[0]


def test_the_packages_of_a_module_count(write: Write) -> None:
    package = write(main="VALUE = 1")
    hashes = [hash_of(f"{package}.main")]
    for init in ("import os", "from . import helper", "from . import helper, main"):
        write(__init__=init, helper="VALUE = 1")
        hashes.append(code_hash(f"{package}.main"))
    write(__init__=init, helper="VALUE = 2")
    assert len({*hashes, code_hash(f"{package}.main")}) == 5


def test_installed_packages_do_not_count(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = write(main="import json, numpy, ringfeed.sharding, there, nowhere.near")
    installed = tmp_path / "site-packages" / "there.py"
    installed.parent.mkdir()
    monkeypatch.syspath_prepend(installed.parent)
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere" / "near.py").write_text("")
    installed.write_text("VALUE = 1")
    before = hash_of(f"{package}.main")
    installed.write_text("VALUE = 2")
    assert code_hash(f"{package}.main") == before
    (tmp_path / "nowhere" / "near.py").write_text("VALUE = 2")
    assert code_hash(f"{package}.main") != before


@pytest.mark.parametrize("text", ["not Python", "x = '\0'", "\xff"])
def test_unparsable_code_counts_as_it_is(text: str, write: Write) -> None:
    package = write(main="def f():\n    from . import broken", broken=text)
    before = hash_of(f"{package}.main")
    write(broken=f"{text} ")
    assert code_hash(f"{package}.main") != before


def test_found_modules_are_not_imported(write: Write) -> None:
    package = write(main="def f():\n    import PACKAGE.deep.inner", deep="raise ValueError")
    hash_of(f"{package}.main")
    assert f"{package}.deep" not in sys.modules


def test_modules_that_import_each_other_are_read_once(write: Write) -> None:
    package = write(main="def f():\n    from . import helper", helper="from . import main, helper")
    assert hash_of(f"{package}.main") == code_hash(f"{package}.main")


def test_fingerprints_of_functions_depend_on_their_imports(write: Write, tmp_path: Path) -> None:
    package = write(
        main="from .helper import SHIFT\n"
        "def records():\n    return [{'x': n + SHIFT} for n in range(8)]\n"
        "def same(batch):\n    return batch\n",
        helper="SHIFT = 0",
    )
    url = f"{package}.main:records"
    mapped = MapBatches(function=f"{package}.main:same", folder=str(tmp_path))
    prints = [(IterableSource.open(url, None).fingerprint, mapped.code_hash)]
    plans = []
    for shift in ("0", "0 * 1"):
        write(helper=f"SHIFT = {shift}")
        prepare = PrepareOptions(steps=(mapped,))
        folder = str(tmp_path / f"out{len(plans)}")
        options = BuildOptions(source=url, source_kind="python", destination=folder, prepare=prepare)
        plans.append(build(options).plan)
        prints.append((IterableSource.open(url, None).fingerprint, mapped.code_hash))
    assert prints[0] == prints[1]
    assert all(first != second for first, second in zip(prints[1], prints[2], strict=True))
    assert plans[0] != plans[1]
