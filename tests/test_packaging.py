"""What is installed is what the tree holds, and a layer imports only the ones before it."""

import ast
import configparser
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest

from tests.helpers.import_graph import (
    LAYERS,
    MODULES,
    PATHS,
    ROOT,
    distances,
    docstring_of,
    files_testing,
    imported_modules,
    imported_names,
    imports,
    module_name,
    own_test,
    parsed,
)

SHARDING = (
    "common", "compute", "storage", "formats", "dataset", "destination", "engines", "sources", "prepare", "assignment",
    "building", "exporting", "verifying", "repairing",
)  # fmt: skip
PIPELINE = ("metrics", "order", "fetch", "select", "decode", "streams", "deliver", "transforms")
TRAINING = (
    "config",
    "schedules",
    "optimizers",
    "ring",
    "sync",
    "keras",
    "checkpoint",
    "models",
    "metrics",
    "records",
    "reports",
    "step",
    "run",
    "planning",
    "serving",
    "elastic",
    "servers",
    "launching",
)
TOOLS = (
    "shard_dataset", "charts", "measure", "predict", "verdict", "report", "profile", "simulation", "tune", "demo",
    "environment",
)  # fmt: skip
ROOMS = (
    "ringfeed.sharding",
    *(f"ringfeed.sharding.{name}" for name in SHARDING),
    *(f"ringfeed.pipeline.{name}" for name in PIPELINE),
    "ringfeed.pipeline",
    *(f"ringfeed.training.{name}" for name in TRAINING),
    "ringfeed.training",
    "ringfeed.tools",
    *(f"ringfeed.tools.{name}" for name in TOOLS),
)
"""The folders in the order of their imports: the modules of each import from it and from those before it."""
FARTHEST = 5
"""Imports between a test and what it tests, at most: as from a run of `ringfeed train` to the parts of its loop."""
FACES = {"ringfeed.sharding", "ringfeed.pipeline", "ringfeed.training"}


def layer_faults(tree: ast.AST, module: str, *, is_package: bool = False) -> list[str]:
    """The imports that reach a later layer, or a folder by a name that it does not have once installed."""
    own = LAYERS.index(module.split(".")[1])
    later = tuple(f"ringfeed.{layer}" for layer in LAYERS[own + 1 :])
    return [
        name
        for name in imports(ast.walk(tree), module, is_package=is_package)
        if name.split(".")[0] in LAYERS or ".".join(name.split(".")[:2]) in later
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("from ..pipeline import Loader", "ringfeed.pipeline.Loader"),
        ("from .. import training", "ringfeed.training"),
        ("import ringfeed.tools.cli", "ringfeed.tools.cli"),
        ("from ringfeed import tools", "ringfeed.tools"),
        ("def f():\n    from ...tools import cli", "ringfeed.tools.cli"),
        ("import training", "training"),
        ('importlib.import_module("ringfeed.training.optimizers.lars")', "ringfeed.training.optimizers.lars"),
        ('import_module("..tools.cli", __package__)', "ringfeed.tools.cli"),
    ],
)
def test_the_layer_check_sees_every_form_of_import(line: str, fault: str) -> None:
    depth = ".formats.tfrecord" if "..." in line else ".build"
    assert layer_faults(ast.parse(line), f"ringfeed.sharding{depth}") == [fault]


def test_the_layer_check_lets_earlier_layers_and_others_through() -> None:
    source = "from ..sharding.errors import RingfeedError\nfrom . import plan\nimport toolsmith, ringfeed.sharding"
    tree = ast.parse(source)
    assert layer_faults(tree, "ringfeed.pipeline", is_package=True) == []
    assert layer_faults(tree, "ringfeed.pipeline.loader") == []


def test_a_layer_imports_only_the_ones_before_it() -> None:
    faults = {
        module_name(path): layer_faults(parsed(path), module_name(path), is_package=path.name == "__init__.py")
        for path in MODULES
    }
    assert {module: names for module, names in faults.items() if names} == {}


def room_of(module: str, *, is_package: bool) -> str:
    """The folder of `ROOMS` that a module is in."""
    package = module if is_package else module.rpartition(".")[0]
    return ".".join(package.split(".")[:3])


def test_every_folder_has_its_place_in_the_order() -> None:
    rooms = {room_of(module_name(path), is_package=path.name == "__init__.py") for path in MODULES}
    assert rooms == set(ROOMS)


def test_a_folder_imports_only_the_ones_before_it() -> None:
    places = {name: ROOMS.index(room_of(name, is_package=path.name == "__init__.py")) for name, path in PATHS.items()}
    assert [
        f"{module} imports {name}"
        for module in map(module_name, MODULES)
        if module not in FACES
        for name in imported_modules(PATHS[module]) - FACES
        if places[name] > places[module]
    ] == []


def test_there_is_no_import_circle() -> None:
    """Not even one of annotations, or through an import inside a function."""
    graph = {module_name(path): imported_modules(path) for path in MODULES}
    with pytest.raises(CycleError):
        TopologicalSorter({**graph, "ringfeed.sharding.errors": {"ringfeed.sharding"}}).prepare()
    TopologicalSorter(graph).prepare()


def test_only_one_module_imports_horovod() -> None:
    importers = {module_name(path) for path in MODULES for name in imported_names(path) if name.startswith("horovod.")}
    assert importers == {"ringfeed.training.ring.horovod"}


def missing_test(path: Path, docstring: str) -> str | None:
    """What is wrong with the tests of a module: it has none, or one that is missing or leads elsewhere."""
    tests, name, own = files_testing(path, docstring), path.relative_to(ROOT), own_test(path).relative_to(ROOT)
    if not tests:
        return f"{name}: write {own}, or end the docstring with a line: Tested in tests/..."
    for test in tests:
        if not test.exists():
            return f"{name} names {test.relative_to(ROOT)}, which does not exist"
        if distances(module_name(test)).get(module_name(path), FARTHEST + 1) > FARTHEST:
            return f"{test.relative_to(ROOT)} does not reach {name} by {FARTHEST} imports"
    return None


def test_a_module_has_a_test_file_of_its_name_or_names_others() -> None:
    faults = [missing_test(path, docstring_of(path)) for path in MODULES if path.name != "__init__.py"]
    assert [fault for fault in faults if fault] == []


@pytest.mark.parametrize(
    ("docstring", "fault"),
    [
        ("Words.", "samples.py: write tests/tools/demo/test_samples.py"),
        ("Words. Tested in tests/tools/demo/test_report.py.", "samples.py: write"),  # not a line of its own
        ("Words.\n\nTested in test_report.py.", "samples.py: write"),
        (
            "Words.\n\nTested in tests/tools/demo/test_reports.py.",
            "test_reports.py, which does not exist",
        ),
        ("Words.\n\nTested in tests/tools/tune/test_tune.py.", "does not reach tools/demo/samples.py"),
        ("Words.\nTested in tests/tools/demo/test_report.py and tests/test_site.py.", "test_site.py does not reach"),
        ("Words.\nTested in tests/tools/demo/test_report.py.", None),
    ],
)
def test_the_check_of_named_tests_can_fail(docstring: str, fault: str | None) -> None:
    found = missing_test(ROOT / "tools/demo/samples.py", docstring)
    assert found is None if fault is None else fault in (found or "")
    in_folder = missing_test(ROOT / "training/config/samples.py", "Words.")  # whose folder names tests
    assert "test_config.py does not reach training/config/samples.py" in (in_folder or "")


def patched_clocks(test: str) -> list[str]:
    """Private clocks that a test sets; it should pass its own times as arguments."""
    return re.findall(r"(?<=[\"'.])_[A-Z_]*SECONDS(?=[\"']|\s*=[^=])", test)


def test_no_test_patches_a_private_clock() -> None:
    name = "_BEAT_SECOND" + "S"  # whole, it would be found in this file
    for patch in (f'patch.setattr(lease, "{name}", 1)', f"patch.setattr('lease.{name}', 1)", f"lease.{name} = 1"):
        assert patched_clocks(patch) == [name]
    found = {path: patched_clocks(path.read_text()) for path in (ROOT / "tests").rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def configured() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_setup_cfg_lists_every_package_of_the_tree() -> None:
    options = configured()["options"]
    packages = {module_name(path.parent / "__init__.py") for path in MODULES}
    assert sorted(options["packages"].split()) == sorted({"ringfeed", *packages})
    package_dir = dict(line.split(" = ") for line in options["package_dir"].strip().splitlines())
    assert package_dir == {"ringfeed": "package", **{f"ringfeed.{layer}": layer for layer in LAYERS}}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_ships_its_type_information(layer: str) -> None:
    assert (ROOT / layer / "py.typed").exists()
    assert (Path(importlib.import_module(f"ringfeed.{layer}").__file__ or "").parent / "py.typed").exists()


def public_names(tree: ast.Module) -> set[str] | None:
    """What a module declares in `__all__`; None if it declares nothing."""
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and ast.unparse(node).startswith("__all__"):
            return set(ast.literal_eval(node.value or ast.Constant(())))
    return None


def test_every_package_of_the_tree_is_one() -> None:
    assert all((path.parent / "__init__.py").exists() for path in MODULES)


def private_imports(names: Iterable[str]) -> list[str]:
    """The imported names of the packages that begin with an underscore, at any level."""
    parts = [(name, name.split(".")) for name in names if name.startswith("ringfeed.")]
    return [name for name, levels in parts if any(part[:1] == "_" and part[:2] != "__" for part in levels)]


def test_every_module_says_what_it_is_and_imports_no_private_name_of_another() -> None:
    assert private_imports(["ringfeed.sharding._x", "ringfeed._y.z", "os._exit"]) == [
        "ringfeed.sharding._x",
        "ringfeed._y.z",
    ]
    for path in MODULES:
        assert docstring_of(path), path
        assert private_imports(imported_names(path)) == [], path


def test_public_names_exist() -> None:
    for name in configured()["options"]["packages"].split()[1:]:  # tests/test_face.py tests `ringfeed` itself
        module = importlib.import_module(name)
        assert not [public for public in module.__all__ if not hasattr(module, public)], name


def test_no_folder_of_a_checkout_shadows_the_installed_package() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "ringfeed").exists()


def test_a_folder_of_the_packages_name_beside_a_program_does_not_shadow_it(tmp_path: Path) -> None:
    folder = tmp_path / "ringfeed/sharding"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('not the installed one')")
    command = [sys.executable, "-c", "import ringfeed.sharding as s; print(s.__file__)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=280)
    assert Path(done.stdout.strip()).resolve() == ROOT / "sharding/__init__.py"


def loaded_by(statement: str) -> set[str]:
    """The top-level modules in a fresh interpreter after a statement."""
    script = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=280)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["ringfeed.sharding", "ringfeed.tools.cli", "ringfeed.tools.shard_dataset.commands"])
def test_a_bare_data_host_needs_neither_tensorflow_nor_horovod(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert "ringfeed" in loaded
    assert not loaded & {"tensorflow", "keras", "horovod", "jax", "matplotlib", "jinja2"}


def test_the_commands_lead_to_functions() -> None:
    scripts = {script.name: script for script in metadata.entry_points(group="console_scripts")}
    assert callable(scripts["ringfeed"].load())
    assert callable(scripts["shard-dataset"].load())
