"""Who imports whom, read from the source: the modules of the packages, and the tests with their helpers.

`imported_modules` is exact, for checks of the order of folders. `uses` says what a text leads to: it looks through the
faces of the packages (``from ringfeed.sharding import build`` uses the module that defines `build`), and follows
modules and programs that strings name, such as the subcommands of `ringfeed`.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("sharding", "pipeline", "training", "tools")
MODULES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
_PROGRAMS = {"shard-dataset": "ringfeed.tools.shard_dataset.program", "ringfeed": "ringfeed.tools.cli"}
_NAMED = re.compile(r"Tested in (tests/\S+\.py)(?: and (tests/\S+\.py))?\.")


def module_name(path: Path) -> str:
    """`ringfeed.tools.cli` for tools/cli.py, `ringfeed.tools` for tools/__init__.py, `tests.test_site` for a test."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    prefix = ("ringfeed",) if parts[0] in LAYERS else ()
    return ".".join((*prefix, *(parts[:-1] if parts[-1] == "__init__" else parts)))


PATHS = {module_name(path): path for path in MODULES}


@cache
def _all_paths() -> Mapping[str, Path]:
    return PATHS | {module_name(path): path for path in (ROOT / "tests").rglob("*.py")}


def all_tests() -> dict[str, Path]:
    """The test files, by the names of their modules."""
    return {name: path for name, path in _all_paths().items() if path.name.startswith("test_")}


def source_of(path: Path) -> str:
    """The code of a module; of a package whose names are imported late, its list of them."""
    stub = path.with_suffix(".pyi")
    return (stub if stub.exists() else path).read_text()


def parsed(path: Path) -> ast.Module:
    """The syntax tree of `source_of`."""
    return ast.parse(source_of(path))


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """What the graph is made from, kept because to parse and walk all files takes seconds."""
    kinds = (ast.Import, ast.ImportFrom, ast.Constant, ast.arg, ast.FunctionDef)
    calls = ("import_module", "cli", "with_name", "usefixtures", "getfixturevalue")
    return tuple(node for node in ast.walk(parsed(path)) if isinstance(node, kinds) or _is_call(node, *calls))


def _is_call(node: ast.AST, *names: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in names


def _words(call: ast.Call) -> list[str]:
    return [str(argument.value) for argument in call.args if isinstance(argument, ast.Constant)]


def imports(nodes: Iterable[ast.AST], module: str, *, is_package: bool) -> Iterator[str]:
    """Every name that nodes of a module's tree import, absolute: `from a import b` gives `a.b`."""
    package = module if is_package else module.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif _is_call(node, "import_module"):
            yield from (resolve_name(name, package) for name in _words(node)[:1])


@cache
def imported_names(path: Path) -> frozenset[str]:
    """`imports` of a file."""
    return frozenset(imports(_nodes(path), module_name(path), is_package=path.name == "__init__.py"))


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """The modules of the packages that a file imports, wherever the import stands; not itself."""
    found = {name if name in PATHS else name.rpartition(".")[0] for name in imported_names(path)}
    return frozenset((found & PATHS.keys()) - {module_name(path)})


@cache
def uses(module: str) -> frozenset[str]:
    """The modules, helpers of tests included, that the text of a module or test leads to at once."""
    path = _all_paths()[module]
    is_test = path.is_relative_to(ROOT / "tests")
    more = {*_started(path), *_conftests(path)} if is_test else _named_in_strings(path)
    found = {_origin(name) for name in (*imported_names(path), *more)}
    return frozenset(name for name in found if name not in (None, module))  # type: ignore[misc]  # None is left out


def _named_in_strings(path: Path) -> set[str]:
    """The modules that strings name: absolute, or relative to the package as in the table of subcommands."""
    module, found = module_name(path), set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for text in _strings(path):
        if re.fullmatch(r"(ringfeed|\.{1,2}[a-z]\w*)(\.\w+)*", text):
            with suppress(ImportError):  # a file name such as ".json.gz"
                found.add(resolve_name(text, package))
    return found & PATHS.keys()


def _started(path: Path) -> set[str]:
    """The modules and programs that a test starts as processes: by name, with `python -m`, or in a script."""
    named = {name for text in _strings(path) for name in re.findall(r"\b(?:ringfeed|tests)(?:\.\w+)+", text)}
    beside = [path.with_name(text) for text in _strings(path) if re.fullmatch(r"\w+\.py", text)]
    scripts = {module_name(each) for each in beside if each.exists()}
    words = {word for node in _nodes(path) if _is_call(node, "cli", "with_name") for word in _words(node)[:1]}
    programs = {_PROGRAMS[word] for word in words if word in _PROGRAMS}
    return {*named, *(f"{name}.__main__" for name in named if f"{name}.__main__" in PATHS), *programs, *scripts}


@cache
def _strings(path: Path) -> frozenset[str]:
    return frozenset(
        node.value for node in _nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _conftests(path: Path) -> set[str]:
    """The files of fixtures, in the folder of a test and above it, of which the test asks for a fixture."""
    above = [folder / "conftest.py" for folder in path.parents if folder.is_relative_to(ROOT / "tests")]
    return {module_name(each) for each in above if each != path and each.exists() and fixtures(each) & asked(path)}


@cache
def asked(path: Path) -> frozenset[str]:
    """The names that may be those of fixtures which a test file asks for, and does not define itself."""
    calls = [node for node in _nodes(path) if _is_call(node, "usefixtures", "getfixturevalue")]
    names = {node.arg for node in _nodes(path) if isinstance(node, ast.arg)}
    return frozenset({*names, *(word for call in calls for word in _words(call))}) - fixtures(path)


@cache
def fixtures(path: Path) -> frozenset[str]:
    """The names of the fixtures that a file defines."""
    return frozenset(
        node.name
        for node in _nodes(path)
        if isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(each) for each in node.decorator_list)
    )


@cache
def _origin(name: str) -> str | None:
    """The module that an imported name comes from: itself, or the one that defines it, seen through faces."""
    paths = _all_paths()
    if name in paths:
        return name
    module, _, attribute = name.rpartition(".")
    if module not in paths:
        return _origin(module) if module else None
    path = paths[module]
    if path.name == "__init__.py":
        for other in imported_names(path):
            if other.rpartition(".")[2] == attribute and other != name:
                return _origin(other)
    return module


@cache
def importers() -> Mapping[str, frozenset[str]]:
    """For each module, the modules and tests that use it."""
    found: dict[str, set[str]] = {}
    for module in _all_paths():
        for used in uses(module):
            found.setdefault(used, set()).add(module)
    return {module: frozenset(those) for module, those in found.items()}


def docstring_of(path: Path) -> str:
    """What a module says of itself."""
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def own_test(path: Path) -> Path:
    """The place of the test file of a module's name, in the mirrored folder."""
    return ROOT / "tests" / path.relative_to(ROOT).with_name(f"test_{path.stem}.py")


def files_testing(path: Path, docstring: str) -> list[Path]:
    """The test files of a module: the one of its name, if there is one, and those that its docstring's last line names.

    Where there are neither, they are those that the docstring of its folder names.

    >>> [test.name for test in files_testing(ROOT / "sharding/storage/urls.py", "Tested in tests/test_security.py.")]
    ['test_security.py']
    """
    own = [own_test(path)] if own_test(path).exists() else []
    return [*own, *_named_tests(docstring)] or _named_tests(docstring_of(path.with_name("__init__.py")))


def _named_tests(docstring: str) -> list[Path]:
    named = _NAMED.fullmatch(docstring.rpartition("\n")[2])
    return [ROOT / name for name in named.groups() if name] if named else []


@cache
def used_by_test(test: str) -> frozenset[str]:
    """The modules of the packages that a test leads to by itself, its helpers and its fixtures."""
    found, todo = {test}, [test]
    while todo:
        new = uses(todo.pop()) - found
        found |= new
        todo += [name for name in new if name not in PATHS]
    return frozenset(found & PATHS.keys())


def distances(test: str) -> dict[str, int]:
    """The modules that a test reaches: 1 for those in `used_by_test`, 2 for those that these use, and so on."""
    layer, step = set(used_by_test(test)), 1
    found = dict.fromkeys(layer, step)
    while layer:
        step += 1
        layer = {used for module in layer for used in uses(module)} - found.keys()
        found |= dict.fromkeys(layer, step)
    return found
