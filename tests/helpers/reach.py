"""`make quick`: run the tests near what changed since the main branch, and say why those and no others.

Near a module are the test files that its docstring names or that have its name, those in its folder's mirror that reach
it through modules of that folder, and a few elsewhere that import it. What takes minutes or starts services is left to
`make test`, unless it is in the mirror of a folder with a change.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .doctests import run_doctests
from .import_graph import (
    LAYERS,
    MODULES,
    PATHS,
    ROOT,
    all_tests,
    asked,
    docstring_of,
    files_testing,
    importers,
    module_name,
    used_by_test,
    uses,
)  # fmt: skip
from .longest import LONGEST

MOST_ELSEWHERE = 5
"""Test files outside of the folder that import a changed file: if there are more, it is a core one."""
MOST = 12
"""Test files to run, the nearest first."""
SERVICES = frozenset({
    "start", "train", "train_in_turn", "train_on_ranks", "run_on_ranks", "warm",
    "s3_server", "s3_bucket", "s3_env", "s3_profile", "proxy", "hdfs_server", "store",
    *(f"tests.servers.{name}" for name in ("dask", "dlio", "hdfs", "hub", "petastorm", "prometheus", "pytorch", "ray")),
})  # fmt: skip
"""Fixtures and helpers that start ranks, stores and clusters."""
OTHERS = {
    "docs/site/": "tests/test_site.py", "mkdocs.yml": "tests/test_site.py", "docs/": "tests/test_documents.py",
    "README.md": "tests/test_documents.py", "CHANGELOG.md": "tests/test_documents.py",
    "CONTRIBUTING.md": "tests/test_documents.py", "examples/": "tests/test_examples.py",
    "notebooks/": "tests/test_notebooks.py", "setup.cfg": "tests/test_packaging.py",
    "tests/golden/": "tests/test_golden.py",
}  # fmt: skip
"""The tests of files that are no modules, by how their paths begin."""


@dataclass(slots=True)
class Selection:
    """What `make quick` runs.

    Attributes:
        tests: test files to run, each with the reason.
        doctests: changed modules whose docstrings have examples.
        left: what is left to `make test`, one phrase each.
    """

    tests: dict[str, str] = field(default_factory=dict)
    doctests: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def changed_files(root: Path = ROOT) -> tuple[str, list[str]]:
    """The commit at which this branch left the main one, and the files that differ from it, new ones included."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.splitlines()

    named = [name for name in ("origin/main", "main") if git("rev-parse", "--verify", "--quiet", name)]
    base = (git("merge-base", "HEAD", named[0]) if named else []) or ["HEAD"]
    changed = git("diff", "--name-only", "--no-renames", base[0])
    return base[0][:8], sorted({*changed, *git("ls-files", "--others", "--exclude-standard")})


def select(changed: Collection[str]) -> Selection:
    """Choose the tests of changed files, which are given relative to the root."""
    chosen = Selection()
    modules = [path for path in MODULES if _is_changed(path, changed)]
    for name in sorted(changed):
        if (ROOT / name).exists() and module_name(ROOT / name) in all_tests():
            chosen.tests[name] = "changed"
    if any(name.endswith((".py", ".pyi")) for name in changed):
        chosen.tests.setdefault("tests/test_packaging.py", "checks the imports of every module")
    folders = {f"tests/{path.parent.relative_to(ROOT)}" for path in modules} | {str(Path(n).parent) for n in changed}
    for path in modules:
        for test in files_testing(path, docstring_of(path)):
            _take(chosen, test, f"the tests of {path.relative_to(ROOT)}", folders, is_named=True)
    for path in modules:
        for test in _in_the_folder(path):
            _take(chosen, test, f"in its folder, and reaches {path.relative_to(ROOT)}", folders)
    for name in sorted({*(path.relative_to(ROOT).as_posix() for path in modules), *changed}):
        _take_others(chosen, name, folders)
    chosen.doctests = [module_name(path) for path in modules if ">>> " in path.read_text()]
    return chosen


def _take(chosen: Selection, path: Path, reason: str, folders: Collection[str], *, is_named: bool = False) -> None:
    """Run a test, unless it is slow and not near enough, or there are enough."""
    test = path.relative_to(ROOT).as_posix()
    if test in chosen.tests or any(phrase.startswith(test) for phrase in chosen.left):
        return
    is_near = str(Path(test).parent) in folders
    if test in LONGEST and not (is_near and is_named):
        chosen.left.append(f"{test} ({reason}), which takes minutes")
    elif (started := _services(path)) and not is_near:
        chosen.left.append(f"{test} ({reason}), which starts {', '.join(started)}")
    elif len(chosen.tests) > MOST:
        chosen.left.append(f"{test} ({reason}): {MOST} others are nearer")
    else:
        chosen.tests[test] = reason


def _is_changed(path: Path, changed: Collection[str]) -> bool:
    """Whether a module changed, or the C or the list of late imports beside it."""
    return any(path.with_suffix(suffix).relative_to(ROOT).as_posix() in changed for suffix in (".py", ".pyi", ".c"))


def _services(test: Path) -> list[str]:
    return sorted(SERVICES & (asked(test) | uses(module_name(test))))


def _in_the_folder(path: Path) -> list[Path]:
    """The tests of the mirrored folder that reach a module through its folder's modules, those that import it first."""
    module, mirror = module_name(path), ROOT / "tests" / path.parent.relative_to(ROOT)
    users, todo = {module}, [module]
    while todo:
        new = {
            each
            for each in importers().get(todo.pop(), frozenset()) - users
            if each in PATHS and PATHS[each].parent == path.parent and PATHS[each].name != "__init__.py"
        }
        users |= new
        todo += new
    found = [test for name, test in all_tests().items() if test.parent == mirror and users & used_by_test(name)]
    return sorted(found, key=lambda test: (module not in uses(module_name(test)), test))


def _take_others(chosen: Selection, name: str, folders: Collection[str]) -> None:
    """Take the tests anywhere that import a module or a helper of tests, if they are few; and those of documents."""
    path = ROOT / name
    if path in all_tests().values():
        return
    if path.exists() and name.startswith((*LAYERS, "tests/")) and path.suffix == ".py":
        users = importers().get(module_name(path), frozenset()) & all_tests().keys()
        if len(users) > MOST_ELSEWHERE:
            chosen.left.append(f"{len(users)} test files that import {name}, but for those above")
            return
        for user in sorted(users):
            _take(chosen, all_tests()[user], f"imports {name}", folders)
    elif not name.startswith(LAYERS):
        test = next((test for start, test in OTHERS.items() if name.startswith(start)), None)
        if test is None:
            chosen.left.append(f"whatever tests {name}")
        else:
            _take(chosen, ROOT / test, f"the tests of {name}", folders)


def main() -> int:
    """Select, print and run; return pytest's exit status."""
    base, changed = changed_files()
    chosen = select(changed)
    _say(f"{len(changed)} files changed since {base}: {len(chosen.tests)} test files are run")
    for test, reason in chosen.tests.items():
        _say(f"  {test}: {reason}")
    _say(f"left to `make test`: {len(chosen.left) or 'all others'}")
    for phrase in chosen.left:
        _say(f"  {phrase}")
    status = 0
    if chosen.doctests:
        status = run_doctests(chosen.doctests)
        status = 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status  # its examples are not in docstrings
    if chosen.tests and not status:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile", "--timeout", "900"]
        status = subprocess.run([*command, *chosen.tests], cwd=ROOT, check=False).returncode
    return status


def _say(line: str) -> None:
    print(f"quick: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
