"""Indented JSON in pieces, never held as a whole.

`json.dumps` with an indent runs in Python and joins a string for each number and comma: a million counts take 300 MB
and seconds. Here the plain values of a mapping or list go through the C encoder, some thousand at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import groupby, islice
from typing import Any

_RUN_ELEMENTS = 1 << 12
_LISTS = (list, tuple, Iterator)
_Encode = Callable[[Any, str, str | None], str]  # a value, the separator of list elements, and the indent


def json_pieces(
    value: Any,
    indent: int,
    *,
    ensure_ascii: bool = True,
    allow_nan: bool = True,
    run_elements: int = _RUN_ELEMENTS,
) -> Iterator[str]:
    """Yield the text of ``json.dumps(value, indent=indent)`` in pieces.

    Args:
        value: mappings with strings as keys, lists, tuples, strings, numbers, bools and None. An iterator in a mapping
            counts as a list and is consumed lazily.
        ensure_ascii, allow_nan: see `json.dumps`.
        run_elements: elements of a list or mapping that are encoded at a time.

    >>> "".join(json_pieces({"a": [1, 2], "b": iter([{}])}, 1)) == json.dumps({"a": [1, 2], "b": [{}]}, indent=1)
    True
    """

    @cache
    def encoder(comma: str, step: str | None) -> Callable[[Any], str]:
        how: dict[str, Any] = {"ensure_ascii": ensure_ascii, "allow_nan": allow_nan, "separators": (comma, ": ")}
        return json.JSONEncoder(indent=step, **how).encode

    def encode(plain: Any, comma: str, step: str | None) -> str:
        return encoder(comma, step)(plain)

    yield from _pieces(value, "\n" + " " * indent, " " * indent, encode, run_elements)


def _pieces(value: Any, newline: str, step: str, encode: _Encode, run_elements: int) -> Iterator[str]:
    if isinstance(value, Mapping):
        between = "{" + newline
        for is_plain, group in groupby(value.items(), lambda item: not isinstance(item[1], (Mapping, *_LISTS))):
            while items := dict(islice(group, run_elements if is_plain else 1)):
                yield between
                if is_plain:
                    yield encode(items, "," + newline, None)[1:-1]
                else:
                    ((key, element),) = items.items()
                    yield f"{encode(key, ',', None)}: "
                    yield from _pieces(element, newline + step, step, encode, run_elements)
                between = "," + newline
        yield newline.removesuffix(step) + "}" if value else "{}"
    elif isinstance(value, _LISTS):
        between, elements = "[" + newline, iter(value)
        while run := list(islice(elements, run_elements)):
            yield between
            yield _run_text(run, newline, step, encode)
            between = "," + newline
        yield "[]" if between[0] == "[" else newline.removesuffix(step) + "]"
    else:
        yield encode(value, ",", None)


def _run_text(run: list[Any], newline: str, step: str, encode: _Encode) -> str:
    """The text of some list elements, without the list's brackets."""
    if not any(isinstance(element, (Mapping, *_LISTS)) for element in run):
        return encode(run, "," + newline, None)[1:-1]
    text = encode(run, ",", step)  # every line begins with a step, as JSON strings hold no newlines
    return text[2 + len(step) : -2].replace("\n" + step, newline)
