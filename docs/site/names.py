"""The public names of the packages, found in their source without importing them: no page needs TensorFlow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "sharding",
    "sharding.prepare",
    "pipeline",
    "pipeline.torch",
    "training",
    "training.keras",
    "tools.profile",
    "tools.simulation",
    "tools.tune",
    "tools.dlio",
)
_WIDTH = 88
_SHORT = 40
_OVERLOADED = "flat_arguments"  # a decorator: the fields of a dataclass are the arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A public name: what it is, how it is called, what its docstring says; of a class also its members."""

    name: str
    kind: str
    signature: str
    doc: str
    members: tuple[Name, ...] = ()

    @property
    def documented(self) -> str:
        """The docstrings of the name and its constructor, in one text."""
        return "\n\n".join([self.doc, *(member.doc for member in self.members if member.name == "__init__")])


@cache
def tree_of(module: str, *, stub: bool = False) -> ast.Module:
    """The source of a module below `ringfeed`; of a package its stub, if it has one and ``stub`` is true."""
    return ast.parse(path_of(module, stub=stub).read_text())


def path_of(module: str, *, stub: bool) -> Path:
    base = ROOT / module.replace(".", "/")
    places = [base.with_suffix(".py"), base / "__init__.py"]
    return next(path for path in ([base / "__init__.pyi"] if stub else []) + places if path.exists())


def exports(module: str) -> list[str]:
    """The `__all__` of a module."""
    for node in tree_of(module, stub=True).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value))
    raise LookupError(f"ringfeed.{module} has no __all__")


def public_names(module: str) -> list[Name]:
    """The names that a package exports."""
    return [describe(*resolve(module, name)) for name in exports(module)]


def resolve(module: str, name: str) -> tuple[str, str, ast.stmt]:
    """Follow imports to the module that defines a name."""
    tree = tree_of(module, stub=True)
    for node in statements(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module, name, node
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            return module, name, node
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            (original,) = (alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return resolve(absolute(module, node), original)
    raise LookupError(f"ringfeed.{module} has no {name}")


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, and those of its conditions."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If):
            yield from node.body


def absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that an import in ``module`` means, below `ringfeed`."""
    if node.level == 0:
        return (node.module or "").removeprefix("ringfeed.")
    parts = module.split(".")
    is_package = path_of(module, stub=False).name == "__init__.py"
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *(node.module or "").split(".")]).strip(".")


def describe(module: str, name: str, node: ast.stmt) -> Name:
    """What a page says of a name."""
    if isinstance(node, ast.ClassDef):
        doc, kind = ast.get_docstring(node) or "", "exception" if name.endswith("Error") else "class"
        members = tuple(members_of(module, node))
        return Name(name=name, kind=kind, signature=class_signature(module, node), doc=doc, members=members)
    if isinstance(node, ast.FunctionDef):
        doc = ast.get_docstring(node) or ""
        return Name(name=name, kind="function", signature=function_signature(module, name, node), doc=doc)
    body = tree_of(module, stub=True).body
    after = body[body.index(node) + 1 :][:1]
    is_doc = after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant)
    doc = str(ast.literal_eval(after[0].value)) if is_doc else ""
    return Name(name=name, kind="value", signature=ast.unparse(node), doc=doc)


def members_of(module: str, node: ast.ClassDef) -> Iterator[Name]:
    """The public methods and properties of a class with a docstring; its bases' too."""
    seen = set()
    for place, owner in lineage(module, node):
        for item in owner.body:
            if not isinstance(item, ast.FunctionDef) or (item.name.startswith("_") and item.name != "__init__"):
                continue
            doc = ast.get_docstring(item) or ""
            if item.name in seen or not doc or doc.startswith("See `"):
                continue
            seen.add(item.name)
            decorators = {ast.unparse(decorator) for decorator in item.decorator_list}
            if decorators & {"property", "cached_property"}:
                returns = f": {ast.unparse(item.returns)}" if item.returns else ""
                yield Name(name=item.name, kind="property", signature=f"{item.name}{returns}", doc=doc)
            else:
                yield Name(name=item.name, kind="method", signature=function_signature(place, item.name, item), doc=doc)


def lineage(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """A class and its bases, as far as they are ringfeed's."""
    yield module, node
    for base in node.bases:
        try:
            place, _, owner = resolve(module, ast.unparse(base).partition("[")[0])
        except (LookupError, StopIteration):
            continue
        if isinstance(owner, ast.ClassDef):
            yield from lineage(place, owner)


def class_signature(module: str, node: ast.ClassDef) -> str:
    """How an object is constructed: by its `__init__`, or from the fields of a dataclass."""
    for place, owner in lineage(module, node):
        for item in owner.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                return function_signature(place, node.name, item, returns=False)
        if any("dataclass" in ast.unparse(decorator) for decorator in owner.decorator_list):
            return call(node.name, fields_of(place, owner))
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return f"class {node.name}({bases})" if bases else f"class {node.name}"


def fields_of(module: str, node: ast.ClassDef) -> list[str]:
    """The fields of a dataclass and its bases, as arguments."""
    found: dict[str, str] = {}
    for place, owner in reversed(list(lineage(module, node))):
        for item in owner.body:
            if isinstance(item, ast.AnnAssign) and "KW_ONLY" in ast.unparse(item.annotation):
                found["*"] = "*"
            elif isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_"):
                default = default_of(place, item.value)
                if "init=False" in ast.unparse(item.value or ast.Constant(0)) or "ClassVar" in ast.unparse(
                    item.annotation
                ):
                    continue
                found[ast.unparse(item.target)] = f"{ast.unparse(item.target)}: {ast.unparse(item.annotation)}{default}"
    return (
        ["*", *found.values()]
        if "kw_only=True" in "".join(map(ast.unparse, node.decorator_list))
        else [*found.values()]
    )


def default_of(module: str, value: ast.expr | None) -> str:
    """A field's default, as in a signature."""
    if value is None:
        return ""
    if isinstance(value, ast.Call):
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default_factory" in given:
            made = given["default_factory"]
            text = ast.unparse(made.body) if isinstance(made, ast.Lambda) else f"{ast.unparse(made)}()"
            return f" = {text.replace('dict()', '{}')}"
        return f" = {value_of(module, given['default'])}" if "default" in given else " = ..."
    return f" = {value_of(module, value)}"


def value_of(module: str, value: ast.expr) -> str:
    """A default; of a constant, what it is, if that is short."""
    if isinstance(value, ast.Name):
        try:
            _, _, node = resolve(module, value.id)
        except (LookupError, StopIteration):  # of another package
            return value.id
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.Tuple | ast.BinOp):
            text = ast.unparse(node.value)
            return text if len(text) < _SHORT else "..."
    return ast.unparse(value)


def function_signature(module: str, name: str, node: ast.FunctionDef, *, returns: bool = True) -> str:
    """How a function is called."""
    flat = [ast.unparse(decorator) for decorator in node.decorator_list if _OVERLOADED in ast.unparse(decorator)]
    if flat:
        place, _, options = resolve(module, flat[0].partition("(")[2].rstrip(")").split(",")[0])
        assert isinstance(options, ast.ClassDef)
        arguments = fields_of(place, options)
    else:
        arguments = arguments_of(module, node.args)
    after = f" -> {ast.unparse(node.returns)}" if returns and node.returns and name != "__init__" else ""
    return call(name, arguments, after)


def arguments_of(module: str, given: ast.arguments) -> list[str]:
    """The arguments of a function without ``self``."""
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + [*given.defaults]
    found = [argument(module, arg, value) for arg, value in zip(positional, defaults, strict=True)]
    if given.vararg:
        found.append(f"*{argument(module, given.vararg, None)}")
    elif given.kwonlyargs:
        found.append("*")
    found += [argument(module, arg, value) for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        found.append(f"**{argument(module, given.kwarg, None)}")
    return [text for text in found if text not in ("self", "cls")]


def argument(module: str, arg: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {ast.unparse(arg.annotation)}" if arg.annotation else ""
    equals = " = " if annotation else "="
    return f"{arg.arg}{annotation}" + (f"{equals}{value_of(module, default)}" if default is not None else "")


def call(name: str, arguments: list[str], after: str = "") -> str:
    """A signature, on one line if it fits."""
    line = f"{name}({', '.join(arguments)}){after}"
    return line if len(line) <= _WIDTH else f"{name}(\n" + "".join(f"    {text},\n" for text in arguments) + f"){after}"
