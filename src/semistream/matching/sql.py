"""SQL predicates: parsed as Spark does, and refused where Arrow would give another answer.

sqlglot parses the text, once, where the join is called; the tree that comes of it is made of plain
values, so whoever evaluates it needs no parser. docs/joins.md lists what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from semistream.errors import OptionError
from semistream.matching.tree import Node, SqlCondition

__all__ = ["parsed"]

_TWO: Final[Mapping[type[Any], str]] = {
    exp.And: "and",
    exp.Or: "or",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.NullSafeNEQ: "is distinct from",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
}
_ONE: Final[Mapping[type[Any], str]] = {
    exp.Not: "not",
    exp.Neg: "negative",
    exp.Abs: "abs",
    exp.Length: "length",
    exp.IsNan: "isnan",
}
_TYPED: Final = {"DATE": "date", "TIMESTAMPTZ": "timestamp", "TIMESTAMPNTZ": "timestamp_ntz"}
"""Literals with the name of a type before them."""
_SUFFIXED: Final = {"BIGINT": "bigint", "DOUBLE": "double"}
"""Numbers with a letter behind them: 10L, 2.5D."""
_ADVICE: Final = (
    "Use columns, literals, =, <>, <, <=, >, >=, <=>, and, or, not, is null, is true, between, in "
    "(literals), like, +, -, *, coalesce, abs, length and isnan; compute anything else in the "
    "stream, before the join."
)


def parsed(text: str) -> SqlCondition:
    """The predicate of a text; `OptionError` if it is none, or has what is not allowed."""
    try:
        return _parsed(text)
    except RecursionError:
        raise OptionError(
            f"The condition {text[:60]!r}… is nested too deeply. Compute parts of it in the "
            "stream, before the join."
        ) from None


def _parsed(text: str) -> SqlCondition:
    try:
        trees = sqlglot.parse(text, read="spark")
    except SqlglotError as error:
        # Its text has colours in it.
        told = re.sub(r"\x1b\[\d+m", "", str(error)).split("\n")[0]
        raise OptionError(
            f"where={text!r} cannot be read as SQL: {told} Give a predicate such as "
            "'quantity >= minimum'."
        ) from error
    if len(trees) != 1 or trees[0] is None:
        raise OptionError(f"where={text!r} must be one SQL predicate. Give one.")
    return SqlCondition(text, _node(trees[0]))


def _node(given: Any) -> Node:
    kind = type(given)
    if kind in (exp.And, exp.Or):
        return _halved(_TWO[kind], [_node(each) for each in _chain(given)])
    if kind in _TWO:
        _check_args(given, "this", "expression")
        return Node(_TWO[kind], (_node(given.this), _node(given.expression)))
    if kind in _ONE:
        _check_args(given, "this")
        return Node(_ONE[kind], (_node(given.this),))
    special = _SPECIAL.get(kind)
    if special is None:
        raise _refused(given)
    return special(given)


def _chain(given: Any) -> list[Any]:
    """The parts of `a and b and c`, or of the same with `or`, which is a tree as deep as long."""
    kind, parts = type(given), []
    while type(given) is kind:
        _check_args(given, "this", "expression")
        parts.append(given.expression)
        given = given.this
    return [given, *reversed(parts)]


def _halved(kind: str, parts: list[Node]) -> Node:
    """The parts joined by `and` or `or`, in a tree of little depth."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return Node(kind, (_halved(kind, parts[:middle]), _halved(kind, parts[middle:])))


def _refused(given: Any) -> OptionError:
    return OptionError(
        f"The condition has {given.sql(dialect='spark')!r}, which cannot be evaluated just as "
        f"Spark would. {_ADVICE}"
    )


def _check_args(given: Any, *known: str) -> None:
    """Raise if something was parsed that would be ignored."""
    if any(value for name, value in given.args.items() if name not in known):
        raise _refused(given)


def _column(given: Any) -> Node:
    _check_args(given, "this", "table")
    side = str(given.table).lower()
    if side not in ("", "stream", "master"):
        raise OptionError(
            f"The condition names {given.sql(dialect='spark')!r}. Name a column, or "
            "stream.column or master.column."
        )
    return Node("column", text=given.name, side=side)


def _literal(given: Any) -> Node:
    _check_args(given, "this", "is_string")
    if given.is_string:
        return Node("string", text=given.this)
    text = str(given.this).lower()
    kind = "double" if "e" in text else "decimal" if "." in text else "integer"
    return Node(kind, text=text)


def _cast(given: Any) -> Node:
    """DATE '…', TIMESTAMP '…', and numbers with a suffix."""
    _check_args(given, "this", "to", "_type")
    inner, wanted = given.this, given.to.this.name
    if isinstance(inner, exp.Literal) and not given.to.expressions:
        if inner.is_string and wanted in _TYPED:
            return Node(_TYPED[wanted], text=inner.this)
        if not inner.is_string and wanted in _SUFFIXED:
            return Node(_SUFFIXED[wanted], text=str(inner.this))
    raise _refused(given)


def _is(given: Any) -> Node:
    _check_args(given, "this", "expression")
    value = given.expression
    if isinstance(value, exp.Null):
        return Node("is null", (_node(given.this),))
    if isinstance(value, exp.Boolean):
        return Node("is true" if value.this else "is false", (_node(given.this),))
    raise _refused(given)


def _between(given: Any) -> Node:
    _check_args(given, "this", "low", "high")
    value = _node(given.this)
    low = Node(">=", (value, _node(given.args["low"])))
    return Node("and", (low, Node("<=", (value, _node(given.args["high"])))))


def _in(given: Any) -> Node:
    _check_args(given, "this", "expressions")
    value, tests = _node(given.this), [_node(each) for each in given.expressions]
    if not tests:
        raise _refused(given)
    return _halved("or", [Node("=", (value, test)) for test in tests])


def _like(given: Any) -> Node:
    _check_args(given, "this", "expression", "negate")
    pattern = given.expression
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise _refused(given)
    found = Node("like", (_node(given.this),), text=pattern.this)
    return Node("not", (found,)) if given.args.get("negate") else found


def _coalesce(given: Any) -> Node:
    _check_args(given, "this", "expressions")
    return Node("coalesce", (_node(given.this), *map(_node, given.expressions)))


def _paren(given: Any) -> Node:
    _check_args(given, "this")
    return _node(given.this)


_SPECIAL: Final[Mapping[type[Any], Callable[[Any], Node]]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda given: Node("boolean", text=str(bool(given.this))),
    exp.Null: lambda given: Node("null"),
    exp.Paren: _paren,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Is: _is,
    exp.Between: _between,
    exp.In: _in,
    exp.Like: _like,
    exp.Coalesce: _coalesce,
}
