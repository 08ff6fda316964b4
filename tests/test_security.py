"""What docs/security.md claims of the code as a whole."""

import ast
import re
from pathlib import Path

from tests.helpers.import_graph import imported_names
from tests.test_packaging import MODULES, PATHS, ROOT, module_name

PAGE = (ROOT / "docs/security.md").read_text()
PICKLING = {
    "ringfeed.sharding.engines.executors",  # errors of workers
    "ringfeed.sharding.sources.records.in_memory",  # records from memory, in a file without a name
    "ringfeed.pipeline.select.where_expression",  # whether an expression can be sent to workers
}
"""The only modules that pickle: what they load was written by the same program."""


def called(path: Path) -> set[str]:
    """What a module calls, as it is written there."""
    return {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}


def test_only_named_modules_pickle_and_none_runs_text_or_a_shell() -> None:
    pickling = {
        module_name(path)
        for path in MODULES
        for name in imported_names(path)
        if name.split(".")[0] in {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
    }
    assert pickling == PICKLING
    forbidden = {"eval", "exec", "os.system", "os.popen", "np.loadtxt", "yaml.unsafe_load", "yaml.full_load"}
    assert {name: called(path) & forbidden for name, path in PATHS.items() if called(path) & forbidden} == {}


def test_no_model_of_a_stranger_is_opened_as_code() -> None:
    opening = re.compile(r"load_model\(|saved_model\.load\(|enable_unsafe_deserialization|safe_mode=False|shell=True")
    found = {module_name(path): set(opening.findall(path.read_text())) for path in MODULES}
    own = {"ringfeed.training.serving.check_export": {"load_model(", "saved_model.load("}}  # what it has just written
    assert {name: calls for name, calls in found.items() if calls} == own


def test_each_file_that_the_page_names_has_a_test() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(named) > 10
    assert all("def test_" in (ROOT / name).read_text() for name in named)
