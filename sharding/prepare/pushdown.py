"""Derive from a `--filter` expression what it implies for single columns, to skip whole row groups of Parquet.

The statistics of a row group hold the least and the greatest value of a column, and its number of nulls. They ignore
NaN. With a negated comparison, pyarrow 26.0.1 skips row groups with NaN, so that ``not (x < 5)`` lost records (tried
2026-11-21). So here a negated comparison of floats implies nothing.
"""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.schema import Feature, Schema

from .expression import NULL, column_name, integer_fits, literal_word, parse

_OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq,
}  # fmt: skip
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_MAX_TERMS = 500  # Arrow recurses into a chain of terms, and ten thousand overflow the stack of a thread
_EXACT = 1 << 53  # integers up to here are exact as floats
_ANY = pc.scalar(True)


def implied_filter(text: str, schema: Schema) -> pc.Expression:
    """An Arrow expression that holds wherever the given one is true, and that statistics can refute.

    Args:
        text: expression that `columns_of` accepts.

    >>> implied_filter("x < 5 and y + 1 > 2", Schema(features=tuple(Feature(name=n, dtype="int8") for n in "xy")))
    <pyarrow.compute.Expression ((x < 5) and true)>
    """
    tree = parse(text)
    kinds = Counter(map(type, ast.walk(tree)))
    named = kinds[ast.Name] + kinds[ast.Call]
    if named > _MAX_TERMS:
        return _ANY
    return _Implication(schema, in_ranges=named + kinds[ast.Constant] > _MAX_TERMS).of(tree, negated=False)


class _Implication:
    """Derives the implications of one expression.

    Args:
        in_ranges: whether to replace a list of values by its range, to save terms.
    """

    def __init__(self, schema: Schema, *, in_ranges: bool) -> None:
        self._in_ranges = in_ranges
        self._features = {feature.name: feature for feature in schema.features if feature.shape == ()}
        self._names = schema.names

    def of(self, node: ast.expr, *, negated: bool) -> pc.Expression:
        """What holds where a node is true, or, if negated, where it is false."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.of(node.operand, negated=not negated)
        if isinstance(node, ast.BoolOp):
            parts = [self.of(value, negated=negated) for value in node.values]
            return reduce(operator.and_ if isinstance(node.op, ast.And) != negated else operator.or_, parts)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = zip(sides, node.ops, sides[1:], strict=False)
            parts = [self._compare(left, type(op), right, negated=negated) for left, op, right in pairs]
            return reduce(operator.or_ if negated else operator.and_, parts)
        feature = self._column(node)
        if feature is not None and feature.dtype == "bool":
            return ~pc.field(feature.name) if negated else pc.field(feature.name)
        return _ANY

    def _column(self, node: ast.expr) -> Feature | None:
        name = column_name(node)
        if name is None and isinstance(node, ast.Name) and literal_word(node.id, self._names) is None:
            name = node.id
        return None if name is None else self._features.get(name)

    def _literal(self, node: ast.expr) -> Any:
        """The value of a literal; None for any other node."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._literal(node.operand)
            return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
        if isinstance(node, ast.Name):
            value = literal_word(node.id, self._names)
            return None if value is NULL else value
        return node.value if isinstance(node, ast.Constant) else None

    def _compare(self, left: ast.expr, op: type[ast.cmpop], right: ast.expr, *, negated: bool) -> pc.Expression:
        feature = self._column(left)
        if feature is None:
            feature, left, right, op = self._column(right), right, left, _MIRRORED.get(op, op)
        if feature is None or (feature.dtype.startswith("float") and negated and op not in (ast.Is, ast.IsNot)):
            return _ANY
        op = _NEGATED[op] if negated else op
        if op in (ast.Is, ast.IsNot):
            missing = pc.is_null(pc.field(feature.name))
            return missing if op is ast.Is else ~missing
        if op not in (ast.In, ast.NotIn):
            return _bound(feature, op, self._literal(right))
        if not isinstance(right, (ast.Tuple, ast.List, ast.Set)) or not right.elts:
            return _ANY
        values = [self._literal(one) for one in right.elts]
        if self._in_ranges:
            return _range(feature, values) if op is ast.In else _ANY
        each = [_bound(feature, ast.Eq if op is ast.In else ast.NotEq, value) for value in values]
        return reduce(operator.or_ if op is ast.In else operator.and_, each)


def _range(feature: Feature, values: Sequence[Any]) -> pc.Expression:
    """What it implies that a column holds one of some values."""
    kinds = {str if isinstance(value, str) else type(value) in (int, float) for value in values}
    if kinds not in ({str}, {True}):
        return _ANY
    return _bound(feature, ast.GtE, min(values)) & _bound(feature, ast.LtE, max(values))


def _bound(feature: Feature, op: type[ast.cmpop], value: Any) -> pc.Expression:
    """What a comparison of a column with a literal implies, in the type of the column."""
    kind, column = feature.primitive, pc.field(feature.name)
    compare = _OPERATORS[op]
    if isinstance(value, bool) or feature.dtype == "bool":
        alike = isinstance(value, bool) and feature.dtype == "bool" and op in (ast.Eq, ast.NotEq)
        return compare(column, pc.scalar(value)) if alike else _ANY
    if isinstance(value, str):
        if feature.dtype == "string":
            return compare(column, pc.scalar(value))
        return compare(column, pc.scalar(value.encode())) if feature.dtype == "binary" else _ANY
    if not isinstance(value, (int, float)) or not feature.numeric or feature.dtype == "float16":
        return _ANY
    if feature.dtype.startswith("float"):
        known = op is not ast.NotEq and abs(value) < _EXACT
        return compare(column, pc.scalar(pa.scalar(float(value), kind))) if known else _ANY
    if isinstance(value, float):
        return _float_bound(column, kind, op, value)
    return compare(column, pc.scalar(pa.scalar(value, kind))) if integer_fits(value, kind) else _ANY


def _float_bound(column: pc.Expression, kind: pa.DataType, op: type[ast.cmpop], value: float) -> pc.Expression:
    """What a comparison of a column of integers with a float implies; the two are compared as floats."""
    if not abs(value) < _EXACT or op is ast.NotEq:
        return _ANY
    low, high = math.floor(value), math.ceil(value)
    if not (integer_fits(low, kind) and integer_fits(high, kind)):
        return _ANY
    least, most = pc.scalar(pa.scalar(low, kind)), pc.scalar(pa.scalar(high, kind))
    if op in (ast.Lt, ast.LtE):
        return column <= most
    return column >= least if op in (ast.Gt, ast.GtE) else (column >= least) & (column <= most)
