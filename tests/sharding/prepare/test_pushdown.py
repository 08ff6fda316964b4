"""What an expression implies for single columns: weaker than the expression, never wrong, useful with statistics."""

import pytest

from ringfeed.sharding.prepare.pushdown import implied_filter
from ringfeed.sharding.schema import Feature, Schema

DTYPES = {"x": "int8", "u": "uint64", "f": "float32", "h": "float16", "s": "string", "raw": "binary", "b": "bool"}
SCHEMA = Schema(
    features=(
        *(Feature(name=name, dtype=dtype) for name, dtype in DTYPES.items()),
        Feature(name="a.b", dtype="int64"),
        Feature(name="list", dtype="int8", shape=(None,)),
    )
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x < 5", "(x < 5)"),
        ("5 > x", "(x < 5)"),
        ("0 < x <= 5", "((x > 0) and (x <= 5))"),
        ("not (0 < x <= 5)", "((x <= 0) or (x > 5))"),
        ("x == -3 and f > 2", "((x == -3) and (f > 2))"),
        ("not (x == -3 and u > 2)", "((x != -3) or (u <= 2))"),
        ("x in (1, 2)", "((x == 1) or (x == 2))"),
        ("x not in (1, 2)", "((x != 1) and (x != 2))"),
        ("x > 2.5", "(x >= 2)"),
        ("x == 2.5", "((x >= 2) and (x <= 3))"),
        ("s >= 'b' or raw == 'a'", '((s >= "b") or (raw == "61"))'),
        ("b and not b or b == true", "((b and invert(b)) or (b == true))"),
        ("x is null", "is_null(x)"),
        ("not (f is null)", "invert(is_null(f))"),
        ("col('a.b') < 1", "(a.b < 1)"),
    ],
)
def test_comparisons_with_literals_are_kept(text: str, expected: str) -> None:
    assert str(implied_filter(text, SCHEMA)).replace(", {nan_is_null=false}", "") == expected


@pytest.mark.parametrize(
    "text",
    [
        "not (f < 5)",  # NaN is no less than 5, and statistics do not tell of it
        "f != 5",
        "f not in (1,)",
        "h < 5",
        "x + 1 < 5",
        "x < u",
        "x < 1000",  # beyond the column's type
        "x > 1e300",
        "f < 1e400",
        "x != 2.5",
        "list is null",  # statistics are of its elements
        "b < true",
        "x in ()",
    ],
)
def test_what_statistics_cannot_refute_implies_nothing(text: str) -> None:
    assert str(implied_filter(text, SCHEMA)) == "true"


NUMBERS, WORDS = range(20_000), [f"'w{number}'" for number in range(501)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"u in ({', '.join(map(str, NUMBERS))}) and x < 5", "(((u >= 0) and (u <= 19999)) and (x < 5))"),
        (f"f in ({', '.join(map(str, NUMBERS))})", "((f >= 0) and (f <= 19999))"),
        (f"s in ({', '.join(WORDS)})", '((s >= "w0") and (s <= "w99"))'),
        (f"u not in ({', '.join(map(str, NUMBERS))})", "true"),
        (f"u in ({', '.join(map(str, NUMBERS))}, 'a')", "true"),
        (" or ".join(f"u == {number}" for number in NUMBERS), "true"),
        (" and ".join(f"u != {number}" for number in NUMBERS), "true"),
    ],
    ids=["integers", "floats", "texts", "none of them", "mixed", "or", "and"],
)
def test_long_expressions_do_not_overflow_the_stack(text: str, expected: str) -> None:
    assert str(implied_filter(text, SCHEMA)) == expected
