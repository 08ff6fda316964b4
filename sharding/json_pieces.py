"""JSON text piece by piece: the text that `json.dumps` with an indent returns, which is never held as a whole.

`json.dumps` with an indent is written in Python, and joins a string for each number and comma: a million counts take
300 MB and seconds. Here lists of plain values go through the encoder written in C, some thousand at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

__all__ = ["json_pieces"]

_RUN = 1 << 14  # elements at a time
_LISTS = (list, tuple, Iterator)
_Encode = Callable[[Any, str], str]  # a value, and what stands between two elements of a list


def json_pieces(value: Any, indent: int, *, ensure_ascii: bool = True, allow_nan: bool = True) -> Iterator[str]:
    """Pieces of what ``json.dumps(value, indent=indent)`` returns.

    Args:
        value: of mappings with strings as keys, lists, tuples, strings, numbers, bools and None. An iterator counts as
            a list, and is gone through as its elements are asked for.
        indent: spaces.
        ensure_ascii: see `json.dumps`.
        allow_nan: see `json.dumps`.

    >>> "".join(json_pieces({"a": [1, 2], "b": iter([{}])}, 1)) == json.dumps({"a": [1, 2], "b": [{}]}, indent=1)
    True
    """

    def encode(plain: Any, comma: str) -> str:
        return json.dumps(plain, ensure_ascii=ensure_ascii, allow_nan=allow_nan, separators=(comma, ": "))

    yield from _pieces(value, "\n" + " " * indent, " " * indent, encode)


def _pieces(value: Any, newline: str, step: str, encode: _Encode) -> Iterator[str]:
    if isinstance(value, Mapping):
        between = "{" + newline
        for key, element in value.items():
            yield f"{between}{encode(key, ',')}: "
            yield from _pieces(element, newline + step, step, encode)
            between = "," + newline
        yield newline.removesuffix(step) + "}" if value else "{}"
    elif isinstance(value, _LISTS):
        between, elements = "[" + newline, iter(value)
        while run := list(islice(elements, _RUN)):
            yield between
            yield from _run_pieces(run, newline, step, encode)
            between = "," + newline
        yield "[]" if between[0] == "[" else newline.removesuffix(step) + "]"
    else:
        yield encode(value, ",")


def _run_pieces(run: list[Any], newline: str, step: str, encode: _Encode) -> Iterator[str]:
    if not any(isinstance(element, (Mapping, *_LISTS)) for element in run):
        yield encode(run, "," + newline)[1:-1]
        return
    for number, element in enumerate(run):
        yield "," + newline if number else ""
        yield from _pieces(element, newline + step, step, encode)
