"""The language of `--filter`: comparisons and arithmetic over columns in the syntax of Python.

`ast` parses an expression, and a walk over a whitelist of nodes turns it into calls of `pyarrow.compute`. Nothing is
evaluated as Python. Nulls are unknown, as in SQL: a comparison with a null is neither true nor false.
Times are stored as integers; a text compared with them is read as a date or time.
"""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import time
from decimal import Decimal
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.compute.arrow_casts import is_number
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import brief

from .column_names import check_columns

Value = Any  # a pa.Array if computed from columns, else a literal: bool, int, float or str
_GRAMMAR = "== != < <= > >=, and, or, not, in (...), is null, + - * /, numbers, 'text', true, false, column names"
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: pc.equal, ast.NotEq: pc.not_equal, ast.Lt: pc.less, ast.LtE: pc.less_equal,
    ast.Gt: pc.greater, ast.GtE: pc.greater_equal,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: pc.add_checked, ast.Sub: pc.subtract_checked, ast.Mult: pc.multiply_checked, ast.Div: pc.divide,
}  # fmt: skip
_WORDS = {"true": True, "false": False}
NULL = object()
NO_TIMES: Mapping[str, pa.DataType] = MappingProxyType({})
_TIME_FORMS: dict[Callable[[pa.DataType], bool], str] = {
    pa.types.is_date: "a day such as '2020-01-31'",
    pa.types.is_timestamp: "a day or time such as '2020-01-31' and '2020-01-31T12:00'",
    pa.types.is_time: "a time of day such as '12:00'",
}
_WIDE = pa.decimal128(38, 0)  # holds every int64 and uint64, which have no common integer type


def columns_of(text: str, names: Collection[str]) -> frozenset[str]:
    """The columns that an expression reads.

    Raises:
        ConfigError: the text is not an expression of the language, or names a column that does not exist.

    >>> sorted(columns_of("0 < a/2 < 5 and col('b c') is not null", ["a", "b c"]))
    ['a', 'b c']
    """
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Call) and column_name(node) is None:
            call = ast.unparse(node)
            raise ConfigError(f"--filter {text!r}: {call!r} is not allowed; the only function is col('a column')")
    used = frozenset(_references(parse(text), names))
    check_columns(f"--filter {text!r}", sorted(used), names)
    if not used:
        raise ConfigError(f"--filter {text!r}: the expression names no column; an expression may hold {_GRAMMAR}")
    return used


def filter_complete(name: str, *, finite: bool = False) -> str:
    """The flag that drops records without a value in a column, as a shell takes it; if `finite`, also NaN and infinity.

    >>> print(filter_complete("delay"), filter_complete("dep. delay"), filter_complete("delay", finite=True), sep="\\n")
    --filter 'delay is not null'
    --filter 'col("dep. delay") is not null'
    --filter 'delay - delay == 0'
    """
    try:
        is_plain = columns_of(name, [name]) == {name}
    except ConfigError:
        is_plain = False
    column = name if is_plain else f"col({json.dumps(name, ensure_ascii=False)})"
    return f"--filter {shlex.quote(f'{column} - {column} == 0' if finite else f'{column} is not null')}"


def evaluate(
    text: str, columns: Mapping[str, pa.Array], times: Mapping[str, pa.DataType] = NO_TIMES
) -> pa.BooleanArray:
    """The truth of an expression for each record; null where it is unknown.

    Args:
        text: expression that `columns_of` accepts.
        columns: at least the columns that it reads.
        times: Arrow types of the columns that hold times as integers.

    Raises:
        ConfigError: the text is not an expression of the language, or does not fit the types of the columns.
        pa.ArrowInvalid: a value overflows its type.

    >>> evaluate("a + 1 > 2 or a is null", {"a": pa.array([1, 2, None])}).to_pylist()
    [False, True, True]
    >>> evaluate("'1970-01-02' <= d", {"d": pa.array([0, 1, None])}, {"d": pa.date32()}).to_pylist()
    [False, True, None]
    """
    try:
        result = _Evaluation(text, columns, times).value(parse(text))
    except pa.ArrowNotImplementedError as error:
        raise ConfigError(f"--filter {text!r}: {brief(error)}") from error
    except OverflowError as error:
        raise ConfigError(f"--filter {text!r}: it holds a number that is too large") from error
    except RecursionError as error:
        raise ConfigError(f"--filter {text!r}: it is nested too deeply or has too many terms") from error
    if not isinstance(result, pa.Array) or result.type != pa.bool_():
        raise ConfigError(f"--filter {text!r}: the expression must be true or false, and is {_kind(result)}")
    return result


@lru_cache(maxsize=64)
def parse(text: str) -> ast.expr:
    """The syntax tree of an expression, which may hold nodes that are not part of the language."""
    try:
        return ast.parse(" ".join(text.split("\n")).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" at character {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        raise ConfigError(
            f"--filter {text!r}: cannot be parsed{where}; an expression may hold {_GRAMMAR}, and col('a name') for "
            "any column"
        ) from error


def _references(node: ast.AST, names: Collection[str]) -> Iterator[str]:
    """The columns that a node and its descendants name."""
    name = column_name(node)
    if name is not None:
        yield name
    elif isinstance(node, ast.Name) and literal_word(node.id, names) is None:
        yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _references(child, names)


def column_name(node: ast.AST) -> str | None:
    """The name in a call ``col('name')``; None for any other node."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "col"):
        return None
    if len(node.args) != 1 or node.keywords or not isinstance(node.args[0], ast.Constant):
        return None
    name = node.args[0].value
    return name if isinstance(name, str) else None


def literal_word(word: str, names: Collection[str]) -> Any:
    """The value of the word `true`, `false` or `null`, unless a column has that name; None for any other word."""
    if word in names:
        return None
    return NULL if word == "null" else _WORDS.get(word)


class _Evaluation:
    """One evaluation of an expression."""

    def __init__(self, text: str, columns: Mapping[str, pa.Array], times: Mapping[str, pa.DataType]) -> None:
        self._text = text
        self._columns = columns
        self._times = times

    def value(self, node: ast.expr) -> Value:
        """The value of a node of the whitelist."""
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
            return node.value
        if isinstance(node, (ast.Name, ast.Call)):
            return self._named(node)
        if isinstance(node, ast.BoolOp):
            both = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
            return reduce(both, [self._truth(value) for value in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return pc.invert(self._truth(node.operand))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return self._signed(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return self._arithmetic(node)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = zip(sides, node.ops, sides[1:], strict=False)
            return reduce(pc.and_kleene, [self._compare(left, op, right) for left, op, right in pairs])
        raise self._fault(f"{ast.unparse(node)!r} is not allowed; an expression may hold {_GRAMMAR}")

    def _fault(self, problem: str) -> ConfigError:
        return ConfigError(f"--filter {self._text!r}: {problem}")

    def _named(self, node: ast.Name | ast.Call) -> Value:
        name = node.id if isinstance(node, ast.Name) else str(column_name(node))
        word = literal_word(name, self._columns) if isinstance(node, ast.Name) else None
        if word is NULL:
            raise self._fault("null equals nothing; write: is null, or is not null")
        return self._columns[name] if word is None else word

    def _truth(self, node: ast.expr) -> pa.Array:
        value = self.value(node)
        if isinstance(value, bool):
            return pa.scalar(value)
        if not isinstance(value, pa.Array) or value.type != pa.bool_():
            raise self._fault(f"{ast.unparse(node)!r} must be true or false, and is {_kind(value)}")
        return value

    def _number(self, node: ast.expr) -> Value:
        value = self.value(node)
        kind = value.type if isinstance(value, pa.Array) else None
        if isinstance(value, (bool, str)) or (kind is not None and not is_number(kind)):
            raise self._fault(f"{ast.unparse(node)!r} must be a number, and is {_kind(value)}")
        return value

    def _signed(self, node: ast.UnaryOp) -> Value:
        value = self._number(node.operand)
        if isinstance(node.op, ast.UAdd):
            return value
        if not isinstance(value, pa.Array):
            return -value
        return pc.negate_checked(_as_type(value, pa.int64() if _is_integer(value.type) else pa.float64()))

    def _arithmetic(self, node: ast.BinOp) -> Value:
        left, right = self._number(node.left), self._number(node.right)
        if not isinstance(left, pa.Array) and not isinstance(right, pa.Array):
            left = pa.array([left])  # two literals: computed like columns, then a literal again
            return self._calculate(node.op, left, right)[0].as_py()
        return self._calculate(node.op, left, right)

    def _calculate(self, operator: ast.operator, left: Value, right: Value) -> pa.Array:
        """Compute integers as int64, so that no narrow type overflows, and `/` and floats as float64, as in Python."""
        divides = isinstance(operator, ast.Div)
        integers = all(isinstance(v, int) or (isinstance(v, pa.Array) and _is_integer(v.type)) for v in (left, right))
        kind = pa.int64() if integers and not divides else pa.float64()
        return _ARITHMETIC[type(operator)](_as_type(left, kind), _as_type(right, kind))

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pa.Array:
        if isinstance(op, (ast.Is, ast.IsNot)):
            value = self.value(left)
            if not self._is_null(right) or not isinstance(value, pa.Array):
                raise self._fault("is compares a column with null, such as: price is not null")
            return pc.is_null(value) if isinstance(op, ast.Is) else pc.is_valid(value)
        if isinstance(op, (ast.In, ast.NotIn)):
            is_member = self._member(left, right)
            return is_member if isinstance(op, ast.In) else pc.invert(is_member)
        for side in (left, right):
            if isinstance(side, ast.Constant) and side.value is None:
                raise self._fault("null equals nothing; write: is null, or is not null")
        one, other = self._time_of(left), self._time_of(right)
        if None not in (one, other) and one != other:
            raise self._fault(f"{one} cannot be compared with {other}; compare each with a text, or cast it with --map")
        operands = self._alike(self._read(left, other), self._read(right, one))
        return _COMPARISONS[type(op)](*operands)

    def _time_of(self, node: ast.expr) -> pa.DataType | None:
        """The type of a column that holds times; None for any other node."""
        name = node.id if isinstance(node, ast.Name) else column_name(node)
        return None if name is None else self._times.get(name)

    def _read(self, node: ast.expr, kind: pa.DataType | None) -> Value:
        """The value of a node; of a text beside a column of times, the integer that stores it there."""
        value = self.value(node)
        return value if kind is None or not isinstance(value, str) else self._stored(value, kind)

    def _stored(self, text: str, kind: pa.DataType) -> int:
        try:
            moment = _instant(text, kind)
        except (ValueError, pa.ArrowNotImplementedError) as error:
            form = next((form for is_kind, form in _TIME_FORMS.items() if is_kind(kind)), "a number")
            raise self._fault(f"{text!r} does not fit the column's type {kind}; compare it with {form}") from error
        return int(moment.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).as_py())

    def _is_null(self, node: ast.expr) -> bool:
        word = literal_word(node.id, self._columns) if isinstance(node, ast.Name) else None
        return word is NULL or (isinstance(node, ast.Constant) and node.value is None)

    def _member(self, left: ast.expr, right: ast.expr) -> pa.Array:
        """Whether each value of a column is in a list; unknown for a null."""
        column = self.value(left)
        if not isinstance(column, pa.Array) or not isinstance(right, (ast.Tuple, ast.List, ast.Set)):
            raise self._fault("in takes a column and a list, such as: carrier in ('AA', 'UA'); of one value: ('AA',)")
        is_member = pc.and_kleene(pc.is_null(column), pa.scalar(None, pa.bool_()))
        alike: dict[pa.DataType, tuple[pa.Array, list[pa.Scalar]]] = {}
        for node in right.elts:
            values, literal = self._alike(column, self._listed(node, self._time_of(left)))
            if literal.type not in alike:
                alike[literal.type] = values, []
            alike[literal.type][1].append(literal)
        for values, literals in alike.values():
            is_member = pc.or_kleene(is_member, _is_one_of(values, literals))
        return is_member

    def _listed(self, node: ast.expr, kind: pa.DataType | None) -> Value:
        if self._is_null(node):
            raise self._fault("null equals nothing; write: or ... is null")
        value = self._read(node, kind)
        if isinstance(value, pa.Array):
            raise self._fault(f"the list after in must hold numbers and texts, got {ast.unparse(node)!r}")
        return value

    def _alike(self, left: Value, right: Value) -> tuple[pa.Array, Any]:
        """Two values in one type; a literal takes the column's."""
        if not isinstance(left, pa.Array) and not isinstance(right, pa.Array):
            raise self._fault("a comparison needs a column on at least one side")
        if not isinstance(left, pa.Array):
            return tuple(reversed(self._alike(right, left)))
        kind = _common(left.type, right)
        if kind is None:
            raise self._fault(f"{_kind(left)} cannot be compared with {_kind(right)}")
        return _as_type(left, kind), _as_type(right, kind)


def _instant(text: str, kind: pa.DataType) -> pa.Scalar:
    """The date or time that a text in ISO 8601 names; one without a zone is in the column's zone."""
    if pa.types.is_time(kind):
        moment = time.fromisoformat(text)
        stored = pa.scalar(moment, kind)
        if stored.as_py() != moment:  # of a finer unit
            raise ValueError(text)
        return stored
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return pc.cast(pa.scalar(text), kind)
    try:
        return pc.cast(pa.scalar(text), kind)
    except pa.ArrowInvalid:
        return pc.assume_timezone(pc.cast(pa.scalar(text), pa.timestamp(kind.unit)), kind.tz)


def _is_one_of(values: pa.Array, literals: Sequence[pa.Scalar]) -> pa.Array:
    """Whether each value equals one of some literals of its type; unknown for a null."""
    if pa.types.is_floating(values.type):  # `is_in` distinguishes -0.0 from 0.0
        return reduce(pc.or_kleene, (pc.equal(values, literal) for literal in literals))
    is_listed = pc.is_in(values, pa.array([literal.as_py() for literal in literals], values.type))
    return pc.if_else(pc.is_valid(values), is_listed, pa.scalar(None, pa.bool_()))


def _common(kind: pa.DataType, other: Value) -> pa.DataType | None:
    """The type that a column and another column or a literal are compared in; None if there is none."""
    if isinstance(other, pa.Array):
        if kind == other.type:
            return pa.float32() if kind == pa.float16() else kind
        if not (is_number(kind) and is_number(other.type)):
            return None
        if not (_is_integer(kind) and _is_integer(other.type)):
            return pa.float64()
        return _WIDE if pa.uint64() in (kind, other.type) else pa.int64()
    if isinstance(other, bool) or kind == pa.bool_():
        return kind if isinstance(other, bool) and kind == pa.bool_() else None
    if isinstance(other, str):
        return kind if kind in (pa.string(), pa.binary()) else None
    if not is_number(kind):
        return None
    if not _is_integer(kind):
        return pa.float32() if kind == pa.float16() else kind
    if isinstance(other, int):
        return kind if integer_fits(other, kind) else _WIDE
    return pa.float64()


def integer_fits(value: int, kind: pa.DataType) -> bool:
    """Whether an integer type can hold a value.

    >>> integer_fits(-128, pa.int8()), integer_fits(128, pa.int8()), integer_fits(-1, pa.uint8())
    (True, False, False)
    """
    signed = bool(pa.types.is_signed_integer(kind))
    bits = int(kind.bit_width) - signed
    return -(signed << bits) <= value < 1 << bits


def _as_type(value: Value, kind: pa.DataType) -> Any:
    if isinstance(value, pa.Array):
        if value.type == kind:
            return value
        return pc.cast(value, kind, safe=not pa.types.is_floating(kind))
    if kind == _WIDE:
        return pa.scalar(Decimal(min(max(value, -(10**37)), 10**37)), kind)  # clipped values still exceed every integer
    if pa.types.is_floating(kind):
        return pa.scalar(float(value), kind)
    return pa.scalar(value.encode() if kind == pa.binary() else value, kind)


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _kind(value: Value) -> str:
    return f"a value of type {value.type}" if isinstance(value, pa.Array) else f"the literal {value!r}"
