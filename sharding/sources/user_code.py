"""User code, such as a function for `--map`: a hash that shows whether it changed, and its errors in one line."""

from __future__ import annotations

import ast
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path
from typing import Any

import xxhash

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.url_secrets import without_secrets

_OURS = str(Path(__file__).parents[1])
_LAYERS = tuple(
    f"{Path(__file__).parents[2] / layer}{os.sep}" for layer in ("sharding", "pipeline", "training", "tools")
)
_STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in')
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_FRAMEWORK = re.compile("[/\\\\](tensorflow|keras|ringfeed)[/\\\\]")
_IN_LAYER = "Exception encountered when calling "
_LONGEST = 300  # characters of an error's text
_INSTALLED = re.compile("[/\\\\](site|dist)-packages[/\\\\]")


def code_hash(name: str) -> str:
    """Hash the code of a module and of all modules that it imports, directly or not, except installed packages.

    Changed code may give other records. Only `import` statements are followed.

    Args:
        name: name of the module, which must be imported already.
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
        except OSError:  # in an archive, or removed since
            continue
        is_package = spec.submodule_search_locations is not None
        waiting += _imported(known[module], module if is_package else module.rpartition(".")[0])
    digest = xxhash.xxh3_64()
    for module, code in sorted(known.items()):
        digest.update(f"{module} {len(code)} ".encode() + code)
    return digest.hexdigest()


def _spec_of(name: str) -> ModuleSpec | None:
    """Return the spec of a module, imported or not, without importing anything."""
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
    """Yield the names of imported modules; `from a import b` gives ``a.b`` too, which need not be a module."""
    with suppress(SyntaxError, ValueError):  # not Python
        for node in ast.walk(ast.parse(code)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # relative, beyond the top-level package
                    base = resolve_name("." * node.level + (node.module or ""), package)
                    names = [f"{base}.{alias.name}" for alias in node.names]
            for name in names:
                yield from _with_packages(name)


def _with_packages(name: str) -> list[str]:
    """Return the packages that contain a module, which are imported before it, and the module."""
    return [*accumulate(name.split("."), "{}.{}".format)]


def import_function(flag: str, name: str, folder: str, *, example: str) -> Callable[..., Any]:
    """Import a function by ``module:function``; modules are searched in a folder first.

    Args:
        flag: the flag that names it, for errors.
        name: module and function.
        folder: path of the folder.
        example: a name, for errors.

    Raises:
        ConfigError: the module or the function does not exist, or the module fails.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigError(f"{flag} takes module:function, such as {example}, got {name!r}")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{flag} {name}: {describe_error(error, name)}; install it") from error
        raise ConfigError(
            f"{flag} {name}: there is no module {error.name!r} in {folder} or among the installed packages"
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{flag} {name}: {describe_error(error, name)}; fix the module") from error
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if function is None or not callable(function):
        raise ConfigError(f"{flag} {name}: {module.__file__} has no function {function_name!r}")
    return function


def describe_error(error: BaseException, name: str, file: str | None = None) -> str:
    """Return an error of user code as ``FILE:LINE: TYPE: TEXT``, with the innermost line of the user's own code.

    Args:
        error: error that the code raised, or the call of it.
        name: name of the function; stands in for the place if no line of user code was reached.
        file: file that defines the function, if it could be loaded; its lines are preferred to other user code's.

    >>> describe_error(TypeError("records() takes 1 argument"), "flights:records")
    'flights:records: TypeError: records() takes 1 argument'
    """
    if str(error).startswith("in user code:"):  # TensorFlow quotes the trace of the code that it has converted
        places = _PLACE.findall(str(error))
        own_places = [place for place in places if not _INSTALLED.search(place[0])]
        others = [place for place in places if not _FRAMEWORK.search(place[0])]
        chosen_place = (own_places or others or [(name,)])[-1]
        return f"{':'.join(chosen_place)}: {_converted_text(str(error))}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_foreign(frame.filename)]
    users = [frame for frame in frames if "site-packages" not in frame.filename]
    own = [frame for frame in frames if frame.filename == file]
    place = name
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}"
    elif chosen := own or users or frames:
        place = f"{chosen[-1].filename}:{chosen[-1].lineno}"
    if isinstance(error, MemoryError):
        raise error
    said = error.args[0] if isinstance(error, KeyError) and _IN_LAYER in str(error) else error  # str() would quote it
    text = _shortened(_without_keras(str(said)))
    return f"{place}: {type(error).__name__}{': ' * bool(text)}{text}"


def _converted_text(message: str) -> str:
    """Return the text of an error below TensorFlow's trace.

    >>> _converted_text('in user code:\\n\\n    File "a.py", line 3, in f\\n        g()\\n\\n    ValueError: no more')
    'ValueError: no more'
    """
    text = message.strip().rpartition("\n\n    File ")[2].partition("\n\n")[2]
    return _shortened(_without_keras(text))


def _without_keras(text: str) -> str:
    """Remove what Keras adds to the text of an error in a layer's call.

    >>> _without_keras("Exception encountered when calling Mine.call().\\n\\nno more\\n\\nArguments received by Mine")
    'no more (in Mine.call())'
    """
    text = _COLOUR.sub("", text).partition("Arguments received by ")[0]
    kind, _, rest = text.strip().partition(_IN_LAYER)
    if rest:  # "ValueError: Exception encountered when calling Mine.call().", then the text
        place, _, rest = rest.partition("\n")
        rest = rest.rpartition("Error encountered:\n")[2]  # where Keras called it to learn the shape of its output
        text = f"{kind}{rest.strip()} (in {place.strip().rstrip('.')})"
    return text


def _shortened(text: str) -> str:
    return " ".join(without_secrets(text).split())[:_LONGEST]


def _is_foreign(filename: str) -> bool:
    return not (filename.startswith((*_LAYERS, "<frozen")) or "/importlib/" in filename)
