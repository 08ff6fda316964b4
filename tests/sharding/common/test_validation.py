"""Validation converts values to annotated types, and names the path of a value that does not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ringfeed.sharding import ConfigError
from ringfeed.sharding.common.validation import fit, fit_fields, numbers


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    share: Fraction | None = None
    rates: Mapping[str, float] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (np.int64(3), int, 3),
        (3, float, 3.0),
        (np.bool_(True), bool, True),
        (0.1, Fraction, Fraction(1, 10)),
        (None, int | None, None),
        ("x", int | str, "x"),
        (["a", "b"], tuple[str, ...], ("a", "b")),
        ({"a": 1}, Mapping[str, Fraction], {"a": Fraction(1)}),
        ({1: "a"}, Mapping[Any, str], {1: "a"}),
        ({"inner": {"size": 1, "names": ["a"]}, "rates": {"x": 1}}, Outer,
         Outer(inner=Inner(size=1, names=("a",)), rates={"x": 1.0})),
        (Inner(size=1), Inner, Inner(size=1)),
    ],
)  # fmt: skip
def test_values_are_converted(value: object, kind: Any, expected: object) -> None:
    found = fit("x", value, kind)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (True, int, "x must be an integer, got True"),
        ("3", int | None, "x must be an integer or None, got '3'"),
        (10**400, float, "x must be a number, got 1000"),
        ("1/0", Fraction, "x must be a number such as 0.9, got '1/0'"),
        ("ab", tuple[str, ...], "x must be a list of texts, got 'ab'"),
        (["a", 1], tuple[str, ...] | None, r"x\[1\] must be text, got 1"),
        ({"a": "b"}, Mapping[str, int], r"x\.a must be an integer, got 'b'"),
        ({1: 2}, Mapping[str, int], "x has the key 1, which must be text; in YAML, put it in quotes: '1'"),
        (3, Outer, r"x must be a group of keys \(inner, share, rates\), got 3"),
        ({}, Outer, r"x\.inner\.size is missing"),
        ({"iner": {}}, Outer, r"unknown key 'x\.iner'; did you mean 'inner'\? The keys are: inner, share, rates"),
        (Inner(size="1"), Inner, r"x\.size must be an integer, got '1'"),  # type: ignore[arg-type]
        ([Inner(size=1), None], Sequence[Inner], r"x\[1\] must be a group of keys"),
    ],
)
def test_other_values_are_refused_by_their_path(value: object, kind: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit("x", value, kind)


def test_fields_of_a_dataclass_are_converted_in_place() -> None:
    outer = Outer(inner=Inner(size=1), share="0.5", rates={"x": 1})  # type: ignore[arg-type]
    fit_fields(outer)
    assert (outer.share, outer.rates) == (Fraction(1, 2), {"x": 1.0})
    with pytest.raises(ConfigError, match="inner must be Inner, got None"):
        fit_fields(Outer(inner=None))  # type: ignore[arg-type]


def test_the_count_of_numbers_is_checked() -> None:
    assert numbers("size", [1, 2], 2) == (1.0, 2.0)
    with pytest.raises(ConfigError, match=r"size must be 2 numbers, got \[1\]"):
        numbers("size", [1], 2)
