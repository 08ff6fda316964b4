"""Code of the user's, such as a function for `--map`: whether it is still the same, and what its errors say."""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path

import xxhash

from ..messages import brief

__all__ = ["code_hash", "describe_error"]

_OURS = str(Path(__file__).parents[1])
_STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = re.compile("[/\\\\](site|dist)-packages[/\\\\]")


def code_hash(name: str) -> str:
    """A hash of the code of a module, and of all that it imports in turn, but for what is installed.

    Other code may give other records. Of what is imported by other means than an `import` statement nothing is known.

    Args:
        name: of the module, which is imported already.
    """
    known: dict[str, bytes] = {}
    waiting = _with_packages(name)
    while waiting:
        module = waiting.pop()
        spec = None if module in known else _spec_of(module)
        if spec is None or not spec.has_location or (module != name and _is_installed(str(spec.origin))):
            continue
        try:
            known[module] = Path(str(spec.origin)).read_bytes()
        except OSError:  # it lies in an archive, or was removed since
            continue
        is_package = spec.submodule_search_locations is not None
        waiting += _imported(known[module], module if is_package else module.rpartition(".")[0])
    digest = xxhash.xxh3_64()
    for module, code in sorted(known.items()):
        digest.update(f"{module} {len(code)} ".encode() + code)
    return digest.hexdigest()


def _spec_of(name: str) -> ModuleSpec | None:
    """Where a module is that is imported, or would be; nothing is imported to find it."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    parent, dot, _ = name.rpartition(".")
    above = _spec_of(parent) if dot else None
    if dot and (above is None or above.submodule_search_locations is None):
        return None
    return PathFinder.find_spec(name, None if above is None else above.submodule_search_locations)


def _is_installed(file: str) -> bool:
    return file.startswith((_OURS, *_STANDARD)) or _INSTALLED.search(file) is not None


def _imported(code: bytes, package: str) -> Iterator[str]:
    """Names of modules that code imports, and some that are none: what is imported from a module may be one."""
    with suppress(SyntaxError, ValueError):  # it is no Python, or is imported only when it is needed
        for node in ast.walk(ast.parse(code)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # from above the top
                    base = resolve_name("." * node.level + (node.module or ""), package)
                    names = [f"{base}.{alias.name}" for alias in node.names]
            for name in names:
                yield from _with_packages(name)


def _with_packages(name: str) -> list[str]:
    """A module and the packages that it is in, which are imported before it."""
    return [*accumulate(name.split("."), "{}.{}".format)]


def describe_error(error: BaseException, name: str, file: str | None = None) -> str:
    """Place, type and text of an error, as ``FILE:LINE: TYPE: TEXT``; the place is the innermost that is the user's.

    Args:
        error: as it was raised by the code, or where that was called.
        name: of the function, which stands for the place if the error arose in no code of the user's.
        file: that the function lies in, where it could be loaded: of other code it need not be the user's.

    >>> describe_error(TypeError("records() takes 1 argument"), "flights:records")
    'flights:records: TypeError: records() takes 1 argument'
    """
    others = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_foreign(frame.filename)]
    users = [frame for frame in others if "site-packages" not in frame.filename]
    own = [frame for frame in others if frame.filename == file]
    place = name
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}"
    elif chosen := own or users or others:
        place = f"{chosen[-1].filename}:{chosen[-1].lineno}"
    text = brief(error, 300)
    return f"{place}: {type(error).__name__}{': ' * bool(text)}{text}"


def _is_foreign(filename: str) -> bool:
    return not (filename.startswith((_OURS, "<frozen")) or "/importlib/" in filename)
