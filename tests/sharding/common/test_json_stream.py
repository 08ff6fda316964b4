"""Streamed JSON equals the text of `json.dumps`, and is never held as a whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.common.json_stream import json_pieces

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(SCALARS, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=20)


@given(VALUES, st.integers(1, 4), st.booleans())
def test_pieces_join_to_the_text_of_json_dumps(value: Any, indent: int, ensure_ascii: bool) -> None:
    pieces = "".join(json_pieces(value, indent, ensure_ascii=ensure_ascii, run_elements=2))
    assert pieces == json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def test_an_iterator_is_written_as_a_list_and_not_held() -> None:
    pieces = json_pieces({"rows": ({"n": n} for n in range(100_000))}, 2)
    assert max(map(len, pieces)) < 200_000  # of 3 MB
    assert "".join(json_pieces({"rows": iter(())}, 2)) == json.dumps({"rows": []}, indent=2)


def test_nan_is_refused_on_request() -> None:
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        list(json_pieces([float("nan")], 1, allow_nan=False))
