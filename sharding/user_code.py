"""Errors in code of the user's, such as a function for `--map`: where in it one arose and what it says, on one line."""

from __future__ import annotations

import traceback
from pathlib import Path

from .wording import brief

__all__ = ["tell_error"]

_OURS = str(Path(__file__).parent)


def tell_error(error: BaseException, name: str, file: str | None = None) -> str:
    """Place, type and text of an error, as ``FILE:LINE: TYPE: TEXT``; the place is the innermost that is the user's.

    Args:
        error: as it was raised by the code, or where that was called.
        name: of the function, which stands for the place if the error arose in no code of the user's.
        file: that the function lies in, where it could be loaded: of other code it need not be the user's.

    >>> tell_error(TypeError("records() takes 1 argument"), "flights:records")
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
