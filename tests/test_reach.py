"""What `make quick` runs: the tests near a change, and no others."""

import subprocess
from pathlib import Path

import pytest

from tests.helpers.import_graph import ROOT, distances, module_name, uses
from tests.helpers.reach import MOST, changed_files, select

PACKAGING = "tests/test_packaging.py"


def name_of(path: str) -> str:
    """The name of a module, which is not written out here: the graph would take it for one that is tested here."""
    return module_name(ROOT / path)


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("sharding/sources/text/csv_parse.py", ["tests/sharding/sources/text/test_csv.py"]),
        ("sharding/sources/arrays/npy.py", ["tests/sharding/sources/arrays/test_npy.py"]),
        ("sharding/engines/dask_engine.py", ["tests/sharding/engines/test_engine.py"]),  # minutes, but of this folder
        ("tests/training/test_launch.py", ["tests/training/test_launch.py"]),  # minutes, but changed
    ],
)
def test_a_change_at_the_edge_runs_its_own_tests(changed: str, tests: list[str]) -> None:
    assert set(select([changed]).tests) == {PACKAGING, *tests}


def test_what_takes_minutes_or_starts_services_is_left_unless_it_is_of_the_folder() -> None:
    near = select(["training/run/progress.py"])
    assert "tests/training/run/state/test_best.py" in near.tests
    assert any(phrase.startswith("tests/training/test_train.py ") for phrase in near.left)
    kernels = select(["sharding/compute/kernels.c"])
    assert "tests/sharding/compute/test_kernels.py" in kernels.tests
    assert any("test_shard_opener.py" in phrase and "starts s3_" in phrase for phrase in kernels.left)


def test_of_a_core_module_the_tests_of_its_folder_are_run_and_the_rest_is_counted() -> None:
    chosen = select(["pipeline/loader.py", "sharding/storage/storage.py"])
    assert {"tests/pipeline/test_loader.py", "tests/sharding/storage/test_storage.py"} <= chosen.tests.keys()
    assert {str(Path(test).parent) for test in chosen.tests} == {"tests", "tests/pipeline", "tests/sharding/storage"}
    assert len(chosen.tests) == MOST + 1
    assert any(
        phrase.endswith("test files that import pipeline/loader.py, but for those above") for phrase in chosen.left
    )
    assert chosen.doctests == [name_of("pipeline/loader.py"), name_of("sharding/storage/storage.py")]


def test_a_helper_runs_the_tests_that_use_it_if_they_are_few() -> None:
    assert "tests/sharding/formats/test_example_encode.py" in select(["tests/helpers/examples.py"]).tests
    many = select(["tests/helpers/builds.py"])
    assert set(many.tests) == {PACKAGING}
    assert any(phrase.endswith("import tests/helpers/builds.py, but for those above") for phrase in many.left)


def test_files_that_are_no_modules_have_their_tests() -> None:
    assert set(select(["docs/site/api.py", "mkdocs.yml"]).tests) == {"tests/test_site.py", PACKAGING}
    chosen = select(["Makefile", "sharding/gone.py"])
    assert (set(chosen.tests), chosen.left) == ({PACKAGING}, ["whatever tests Makefile"])


def test_changes_are_those_since_the_main_branch_committed_or_not(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        person = ["-c", "user.name=A", "-c", "user.email=a@b"]
        subprocess.run(["git", *person, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)

    git("init", "-b", "main")
    for name in ("kept", "committed", "edited", "moved"):
        write(name, name)
    git("add", ".")
    git("commit", "-m", "Begin")
    git("checkout", "-b", "work")
    write("committed", "more")
    git("mv", "moved", "elsewhere")
    git("commit", "-am", "Change")
    write("edited", "more")
    write("new", "new")
    assert changed_files(tmp_path)[1] == ["committed", "edited", "elsewhere", "moved", "new"]
    git("checkout", "main", "--force")
    assert changed_files(tmp_path)[1] == ["new"]


def test_the_graph_sees_through_faces_fixtures_and_programs() -> None:
    builds = uses("tests.helpers.builds")
    assert name_of("sharding/building/build.py") in builds
    assert name_of("sharding/__init__.py") not in builds
    assert "tests.pipeline.conftest" in uses("tests.pipeline.test_loader")
    assert name_of("tools/demo/__main__.py") in uses("tests.tools.demo.test_run")
    assert name_of("tools/shard_dataset/program.py") in uses("tests.tools.shard_dataset.test_errors")
    assert name_of("tools/cache.py") in uses(name_of("tools/cli.py"))
    steps = distances("tests.sharding.sources.text.test_csv")  # by `open_source`, which chooses among all sources
    assert steps[name_of("sharding/sources/text/csv.py")] == 2
    assert name_of("training/train.py") not in steps
