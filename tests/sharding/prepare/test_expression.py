"""The `--filter` language: its grammar, nulls, the limits of types, and its errors."""

import math
import operator
import shlex
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import ConfigError
from ringfeed.sharding.prepare.expression import columns_of, evaluate, filter_complete

COLUMNS = {
    "x": pa.array([1, 2, None], pa.int8()),
    "f": pa.array([0.1, 0.2, None], pa.float32()),
    "h": pa.array([0.5, 1.5, None], pa.float16()),
    "s": pa.array(["a", "b", None]),
    "raw": pa.array([b"a", b"b", None]),
    "u": pa.array([0, 5, 2**64 - 1], pa.uint64()),
    "b": pa.array([True, False, None]),
    "a b, ü": pa.array([1.0, math.nan, -math.inf]),
    "class": pa.array([3, 4, 5]),
    "l": pa.array([[1], [2], [3]]),
}
T, F, N = True, False, None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x > 1", [F, T, N]),
        ("1 < x", [F, T, N]),
        ("0 < x < 2", [T, F, N]),
        ("x + 127 > 128", [F, T, N]),  # beyond int8
        ("x / 2 == 0.5", [T, F, N]),
        ("-x * 2 - 1 == -5", [F, T, N]),
        ("x != 200", [T, T, N]),
        ("x > 1e400", [F, F, N]),
        (f"x < {10**60}", [T, T, N]),
        ("f == 0.1", [T, F, N]),  # in the column's own precision
        ("h > 1", [F, T, N]),
        ("f > x", [F, F, N]),
        ("u > -1", [T, T, T]),
        ("u == 18446744073709551615", [F, F, T]),
        ("u >= x", [F, T, N]),
        ("u > x - 1.5", [T, T, N]),
        ("s == 'a'", [T, F, N]),
        ('s >= "b"', [F, T, N]),
        ("raw == 'b'", [F, T, N]),
        ("b", [T, F, N]),
        ("not b", [F, T, N]),
        ("b == false", [F, T, N]),
        ("b and s == 'a'", [T, F, N]),
        ("b or u > 5", [T, F, T]),  # unknown or true is true
        ("b and false", [F, F, F]),
        ("x in (1, 3)", [T, F, N]),
        ("x not in [1, 3, 500]", [F, T, N]),
        ("x in ()", [F, F, N]),
        ("s in {'b', 'c'}", [F, T, N]),
        ("x is null", [F, F, T]),
        ("x is None", [F, F, T]),
        ("x is not null and u > 0", [F, T, F]),
        ("col('a b, ü') > 0", [T, F, F]),
        ("col('class') - 3 == 0", [T, F, F]),
        ("(x == 1 or x == 2) == b", [T, F, N]),
        ("  x\n> 1 ", [F, T, N]),
    ],
)  # fmt: skip
def test_expressions_evaluate_as_documented(text: str, expected: list[bool | None]) -> None:
    assert evaluate(text, COLUMNS).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("xx > 1", "no column 'xx'; did you mean 'x'"),
        ("x >", "cannot be parsed"),
        ("class == 1", "col('a name')"),
        ("x = 1", "cannot be parsed"),
        ("x == null", "write: is null"),
        ("x != None", "write: is null"),
        ("x in (1, null)", "is null"),
        ("x is 1", "is compares a column with null"),
        ("x", "must be true or false"),
        ("x + 1", "must be true or false"),
        ("x and b", "'x' must be true or false"),
        ("not x", "'x' must be true or false"),
        ("s == 1", "cannot be compared with the literal 1"),
        ("x == '1'", "cannot be compared"),
        ("b == 1", "cannot be compared"),
        ("l == 1", "cannot be compared"),
        ("s == x", "cannot be compared"),
        ("s + 'a' == 'b'", "'s' must be a number"),
        ("b + 1 > 0", "'b' must be a number"),
        ("1 < 2 and b", "a column on at least one side"),
        ("true", "names no column"),
        ("x in s", "in takes a column and a list"),
        ("s in ('a')", "of one value: ('AA',)"),
        ("x in (s,)", "numbers and texts"),
        ("'a' in s", "in takes a column and a list"),
        (f"x + {10**30} > 1", "too large"),
        ("__import__('os')", "not allowed"),
        ("x.real > 1", "'x.real' is not allowed"),
        ("x[0] > 1", "not allowed"),
        ("(lambda: x)() > 1", "not allowed"),
        ("[x for x in s] == 1", "not allowed"),
        ("x ** 2 > 1", "not allowed"),
        ("x if b else u", "not allowed"),
        ("col(s) > 1", "not allowed"),
        ("col('x', 1) > 1", "not allowed"),
        ("f'{x}' == s", "not allowed"),
        ("(y := x) > 1", "no column 'y'"),
        ("x > 1j", "not allowed"),
        ("x > ...", "not allowed"),
        ("(" * 500 + "x" + ")" * 500, "cannot be parsed"),
        ("x > \0", "cannot be parsed"),
        (" + ".join(["x"] * 500) + " > 1", "nested too deeply or has too many terms"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        columns_of(text, COLUMNS) and evaluate(text, COLUMNS)
    assert told in str(error.value)
    assert "--filter" in str(error.value)


def test_a_column_may_be_named_like_a_word() -> None:
    columns = {"true": pa.array([1, 2]), "col": pa.array([2, 2])}
    assert columns_of("true == col", columns) == {"true", "col"}
    assert evaluate("true == col", columns).to_pylist() == [False, True]


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.sampled_from(sorted(_COMPARE)),
    st.integers(-(2**70), 2**70),
)
def test_integers_compare_as_in_python(values: list[int], sign: str, literal: int) -> None:
    found = evaluate(f"x {sign} {literal}", {"x": pa.array(values, pa.int64())})
    assert found.to_pylist() == [_COMPARE[sign](value, literal) for value in values]


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_unsigned_and_signed_columns_compare_as_in_python(pairs: list[tuple[int, int]]) -> None:
    columns = {"u": pa.array([u for u, _ in pairs], pa.uint64()), "x": pa.array([x for _, x in pairs], pa.int64())}
    assert evaluate("u > x", columns).to_pylist() == [u > x for u, x in pairs]


@pytest.mark.parametrize(
    ("values", "listed", "expected"),
    [
        (pa.array([1, 2, None], pa.int8()), "3, 1, 300, 1.0, 99999999999999999999999", [T, F, N]),
        (pa.array([2**64 - 1, 1, None], pa.uint64()), "-1, 18446744073709551615", [T, F, N]),
        (pa.array([-0.0, float("nan"), None]), "1, 0.0", [T, F, N]),
        (pa.array(["a", "", None]), "'a', 'b'", [T, F, N]),
        (pa.array([b"a", b"", None]), "'b', ''", [F, T, N]),
        (pa.array([True, False, None]), "false, false", [F, T, N]),
    ],
)
def test_a_list_holds_values_of_several_types(values: pa.Array, listed: str, expected: list[bool | None]) -> None:
    assert evaluate(f"x in ({listed})", {"x": values}).to_pylist() == expected
    denied = [None if each is None else not each for each in expected]
    assert evaluate(f"x not in ({listed})", {"x": values}).to_pylist() == denied


def test_a_long_list_takes_no_memory_for_each_of_its_values() -> None:
    ids, known = pa.array(range(1 << 16)), pa.default_memory_pool()
    pool = pa.proxy_memory_pool(known)
    pa.set_memory_pool(pool)
    try:
        found = evaluate(f"id in ({', '.join(map(str, range(0, 4000, 2)))})", {"id": ids}).true_count
    finally:
        pa.set_memory_pool(known)
    assert found == 2000
    assert pool.max_memory() < 1 << 20  # where a bit of each record for each value takes 16 MiB


TIMES = {
    "day": (pa.date32(), [0, 18262]),
    "t": (pa.timestamp("us"), [0, 1_577_836_800_500_000]),
    "z": (pa.timestamp("ns", "Europe/Berlin"), [0, 1_577_833_200_000_000_000]),
    "clock": (pa.time32("s"), [0, 3600]),
    "took": (pa.duration("ms"), [0, 1500]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("day >= '2020-01-01'", [F, T, N]),
        ("'1970-01-01' == day", [T, F, N]),
        ("day in ('2020-01-01', '2021-01-01')", [F, T, N]),
        ("day < 1", [T, F, N]),
        ("t > '2020-01-01'", [F, T, N]),
        ("t == '2020-01-01T00:00:00.5' or t == '1970-01-01 00:00'", [T, T, N]),
        ("z == '2020-01-01'", [F, T, N]),  # midnight in Berlin
        ("z == '2019-12-31T23:00:00Z'", [F, T, N]),
        ("clock < '00:30'", [T, F, N]),
        ("took + 0 > 1000", [F, T, N]),
    ],
)
def test_a_text_beside_times_is_a_date_or_time(text: str, expected: list[bool | None]) -> None:
    columns = {
        name: pa.array([*v, None], pa.int32() if k.bit_width == 32 else pa.int64()) for name, (k, v) in TIMES.items()
    }
    assert evaluate(text, columns, {name: kind for name, (kind, _) in TIMES.items()}).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "day > '2020-01-01T12:00'",
            r"does not fit the column's type date32\[day\]; compare it with a day such as '2020",
        ),
        (
            "t > 'today'",
            r"'today' does not fit .*timestamp\[us\]; compare it with a day or time such as '2020-01-31' and",
        ),
        ("clock > '25:00'", "a time of day such as '12:00'"),
        ("clock > '12:00:00.5'", "a time of day such as '12:00'"),
        ("took > '1 s'", r"duration\[ms\]; compare it with a number"),
        ("day == t", r"date32\[day\] cannot be compared with timestamp\[us\]; compare each with a text"),
    ],
)
def test_a_text_that_is_no_time_is_refused(text: str, told: str) -> None:
    columns = {name: pa.array([], pa.int32() if k.bit_width == 32 else pa.int64()) for name, (k, _) in TIMES.items()}
    with pytest.raises(ConfigError, match=told):
        evaluate(text, columns, {name: kind for name, (kind, _) in TIMES.items()})


@pytest.mark.parametrize("name", ["x", "a b", "Solar.R", "class", "true", 'say "hi"', "it's", "", "a-b", "1", "a\nb"])
@pytest.mark.parametrize("finite", [False, True])
def test_a_remedy_drops_records_without_a_value_whatever_the_column_is_called(name: str, finite: bool) -> None:
    flag, text = shlex.split(filter_complete(name, finite=finite))
    values = pa.array([1.0, None, float("nan"), float("-inf")])
    assert (flag, columns_of(text, [name, "Solar"])) == ("--filter", {name})
    assert evaluate(text, {name: values}).fill_null(False).to_pylist() == [True, False, not finite, not finite]
