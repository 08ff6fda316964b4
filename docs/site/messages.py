"""The index of error messages: what the source raises, with the remedy that follows the semicolon of most messages."""

import ast
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_LAYERS = {
    "sharding": "Building, checking and repairing datasets",
    "pipeline": "Loading batches",
    "training": "Training, predicting, exporting",
    "tools": "Commands",
}
_SHORTEST = 25  # characters of text; shorter messages name no cause

_INTRODUCTION = """\
# Error messages

Every error is one line: where it is, what is wrong, and what to do about it. This page lists the messages as the source
has them, so that a search for a few of their words leads here; `…` stands for a file, a name or a number. A message
ends with the status 1, or 2 where the command line itself is wrong. `--debug` adds a traceback.
"""


def error_pages() -> dict[str, str]:
    """The page by its name."""
    parts = [_INTRODUCTION]
    for layer, title in _LAYERS.items():
        found = sorted({text for path in (_ROOT / layer).rglob("*.py") for text in messages(path.read_text())})
        parts.append(f"## {title}\n\n| message | what to do |\n| --- | --- |\n" + "\n".join(map(_row, found)))
    return {"reference/errors.md": "\n\n".join(parts) + "\n"}


def messages(code: str) -> Iterator[str]:
    """Yield the texts of the errors that a module raises, with … for each value in them.

    >>> list(messages('raise ConfigError(f"{path}: the file {name!r} has no header line; give --columns")'))
    ['…: the file … has no header line; give --columns']
    """
    module = ast.parse(code)
    named = {node.targets[0].id: node.value for node in module.body if _is_text(node)}
    for node in ast.walk(module):
        call = node.exc if isinstance(node, ast.Raise) else None
        if not isinstance(call, ast.Call) or not call.args or not ast.unparse(call.func).endswith("Error"):
            continue
        text = _text(call.args[0], named)
        if len(text.replace("…", "")) >= _SHORTEST:
            yield text


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement gives one name to a text."""
    is_named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    return is_named and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _text(node: ast.expr, named: dict[str, ast.expr]) -> str:
    match node:
        case ast.FormattedValue(value=ast.Name(id=name)) if name in named:
            return _text(named[name], named)
        case ast.Constant(value=str(text)):
            return " ".join(text.split("\n"))
        case ast.JoinedStr(values=values):
            return "".join(_text(value, named) for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, named) + _text(right, named)
    return "…"


def _row(message: str) -> str:
    cause, _, remedy = message.partition("; ")
    return f"| {_cell(cause)} | {_cell(remedy)} |"


def _cell(text: str) -> str:
    for letter in "\\`*_[]<>|{}":
        text = text.replace(letter, f"&#{ord(letter)};")
    return text
