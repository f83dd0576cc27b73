"""The tree of a predicate, and its evaluation on Arrow batches with Spark's meaning.

Types are settled when the tree is bound to columns. What Arrow does as Spark does is left to Arrow;
the rest is here: NaN equals itself and is greater than any number, sides of a comparison have one
type, and arithmetic that overflows is an error.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.arrow_arrays import strings, to_arrow
from semistream.errors import OptionError
from semistream.matching.condition import BoundCondition, Columns, Place

__all__ = ["Node", "SqlCondition"]

_Values: TypeAlias = Any
"""An Arrow array, or a scalar."""
_Run: TypeAlias = Callable[[pa.RecordBatch], _Values]

_MOST_DIGITS: Final = 38
_DIGITS: Final = {
    pa.int8(): 3,
    pa.int16(): 5,
    pa.int32(): 10,
    pa.int64(): 20,
    pa.uint64(): 20,
}
_SIGNED: Final = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_COMPARED: Final[Mapping[str, Callable[[_Values, _Values], _Values]]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
}
_ARITHMETIC: Final[Mapping[str, Callable[[_Values, _Values], _Values]]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}
_ZONED: Final = re.compile(r"(.*\d)\s*(?:(?:UTC|GMT|UT)?([+-]\d\d:?\d\d)|([A-Za-z]+(?:/[\w+-]+)*))")
"""A time, and its distance from UTC or the name of its zone."""


@dataclass(frozen=True)
class Node:
    """A part of a predicate."""

    kind: str
    parts: tuple[Node, ...] = ()
    text: str = ""
    """The name of a column, or a literal as it was written."""
    side: str = ""
    """Of a column: "stream", "master", or "" for the one that has it."""


@dataclass(frozen=True)
class SqlCondition:
    """A predicate, as text and as a tree. It needs no parser any more."""

    text: str
    tree: Node = field(compare=False)

    def __str__(self) -> str:
        """The text."""
        return self.text

    def bind(self, columns: Columns) -> BoundCondition:
        """The condition for these columns; `OptionError` if types do not go together."""
        return _bound(self.tree, columns)


@dataclass(frozen=True)
class _Typed:
    """A part that knows its type; `literal` is its text if it is a number that was written."""

    type: pa.DataType
    run: _Run
    literal: str = ""


def _bound(tree: Node, columns: Columns) -> BoundCondition:
    """The predicate for these columns; `OptionError` unless it is true or false of each pair."""
    binding = _Binding(columns)
    found = binding.typed(tree)
    if found.type not in (pa.bool_(), pa.null()):
        raise OptionError(f"The condition gives {found.type}, not true or false. Use a comparison.")

    def passing(pairs: pa.RecordBatch) -> pa.RecordBatch:
        try:
            mask = found.run(pairs)
        except pa.ArrowInvalid as error:
            raise OptionError(
                f"The condition cannot be evaluated: {error}. Cast the columns to a wider type, in "
                "the stream or in the master."
            ) from error
        if isinstance(mask, pa.Scalar):
            return pairs if mask.as_py() else pairs.slice(0, 0)
        if pa.types.is_null(mask.type):
            return pairs.slice(0, 0)
        return pairs.filter(mask)

    return BoundCondition(tuple(binding.places), passing)


class _Binding:
    """Binds one tree, and notes the columns that it needs."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.places: dict[Place, None] = {}

    def typed(self, node: Node) -> _Typed:
        """The node with its type."""
        if node.kind == "column":
            return self._column(node)
        if not node.parts:
            return _literal(node)
        parts = [self.typed(part) for part in node.parts]
        if node.kind in ("and", "or"):
            return _logical(node.kind, *parts)
        if node.kind in ("=", "<>", "<", "<=", ">", ">=", "<=>", "is distinct from"):
            return _comparison(node.kind, *parts)
        if node.kind in _ARITHMETIC:
            return _arithmetic(node.kind, *parts)
        return _FUNCTIONS[node.kind](node, parts)

    def _column(self, node: Node) -> _Typed:
        place = self._columns.find(node.text, node.side)
        self.places[place] = None
        name, kind = place.inside, place.type
        if kind in _SIGNED:
            wider = _SIGNED[kind]
            return _Typed(wider, lambda pairs: pairs.column(name).cast(wider))
        if kind == pa.float16():
            return _Typed(pa.float32(), lambda pairs: pairs.column(name).cast(pa.float32()))
        if pa.types.is_decimal(kind) and kind.precision > _MOST_DIGITS:
            raise OptionError(
                f"The condition names {place.name!r}, which is {kind}. Cast it to a decimal of at "
                f"most {_MOST_DIGITS} digits."
            )
        return _Typed(kind, lambda pairs: pairs.column(name))


def _constant(value: _Values, kind: pa.DataType, literal: str = "") -> _Typed:
    return _Typed(kind, lambda pairs: value, literal)


def _literal(node: Node) -> _Typed:
    """A literal as a scalar of the type that Spark gives it."""
    text = node.text
    if node.kind == "null":
        return _constant(pa.nulls(1, pa.null())[0], pa.null())
    if node.kind == "boolean":
        return _constant(to_arrow(np.array([text == "True"]))[0], pa.bool_())
    if node.kind == "string":
        return _constant(strings([text])[0], pa.string())
    if node.kind == "double":
        return _double(text)
    if node.kind in ("date", "timestamp", "timestamp_ntz"):
        return _time(node)
    number = Decimal(text)
    if node.kind == "decimal" or abs(number) >= 2**63:
        return _decimal(text)
    wide = node.kind == "bigint" or abs(number) >= 2**31
    values = np.array([int(number)], np.int64 if wide else np.int32)
    return _constant(to_arrow(values)[0], pa.int64() if wide else pa.int32(), text)


def _double(text: str) -> _Typed:
    return _constant(to_arrow(np.array([float(text)]))[0], pa.float64(), text)


def _decimal(text: str) -> _Typed:
    digits, scale = len(Decimal(text).as_tuple().digits), -int(Decimal(text).as_tuple().exponent)
    kind = _decimal_type(max(digits, scale), scale)
    return _constant(strings([text]).cast(kind)[0], kind, text)


def _decimal_type(digits: int, scale: int) -> pa.DataType:
    if digits > _MOST_DIGITS:
        raise OptionError(
            f"The condition has a decimal of {digits} digits; {_MOST_DIGITS} are the most. Cast "
            "its columns to fewer."
        )
    return pa.decimal128(digits, scale)


def _time(node: Node) -> _Typed:
    text, zoned = node.text.strip(), _ZONED.fullmatch(node.text.strip())
    try:
        if node.kind == "date":
            days = (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days
            return _constant(to_arrow(np.array([days], np.int32)).view(pa.date32())[0], pa.date32())
        if node.kind == "timestamp" and zoned is None:
            raise OptionError(
                f"TIMESTAMP {text!r} has no time zone, and which one is meant depends on the "
                f"session. Give one, as in TIMESTAMP '{text}Z', or use TIMESTAMP_NTZ."
            )
        if node.kind == "timestamp_ntz" and zoned is not None:
            raise OptionError(f"TIMESTAMP_NTZ {text!r} has a time zone. Leave it out.")
        when = dt.datetime.fromisoformat(text) if zoned is None else _zoned(*zoned.groups())
    except ValueError as error:
        raise OptionError(
            f"{node.kind.upper()} {text!r} cannot be read: {error}. Give it as 2024-01-31, or as "
            "2024-01-31 13:45:00 with a time zone if it has one."
        ) from error
    epoch = dt.datetime(1970, 1, 1, tzinfo=None if zoned is None else dt.UTC)
    micros = (when - epoch) // dt.timedelta(microseconds=1)
    kind = pa.timestamp("us", None if zoned is None else "UTC")
    return _constant(to_arrow(np.array([micros], np.int64)).view(kind)[0], kind)


def _zoned(text: str, offset: str | None, name: str | None) -> dt.datetime:
    """A time in a zone; where clocks are put back, the earlier one, as Spark has it.

    >>> _zoned("2024-07-01 12:00:00", None, "Europe/Zurich").astimezone(dt.UTC).hour
    10
    """
    when = dt.datetime.fromisoformat(text.strip() + (offset or ""))
    if name is None:
        return when
    if name.upper() in ("Z", "UTC", "GMT", "UT"):
        return when.replace(tzinfo=dt.UTC)
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(f"there is no time zone {name!r} here") from error
    # A difference to a time in UTC counts in UTC.
    return when.replace(tzinfo=zone)


def _cast(part: _Typed, kind: pa.DataType) -> _Run:
    """The values of a part as another type."""
    if part.type == kind:
        return part.run
    if part.literal and kind == pa.float64():
        return _double(part.literal).run
    # A whole number that no double equals is rounded, as Spark does.
    safe = kind != pa.float64()
    return lambda pairs: part.run(pairs).cast(kind, safe=safe)


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind)
    )


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """Digits and scale of a whole number or a decimal."""
    if pa.types.is_decimal(kind):
        return kind.precision, kind.scale
    return _DIGITS[kind], 0


def _common(left: _Typed, right: _Typed) -> pa.DataType:
    """The type in which both are compared; `OptionError` if there is none that loses nothing."""
    one, other = left.type, right.type
    if one == other:
        return one
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    found = _common_number(left, right) if _is_number(one) and _is_number(other) else None
    for family in _FAMILIES:
        found = found or family(one, other)
    if found is None:
        raise OptionError(
            f"The condition brings together {one} and {other}, which cannot be compared without a "
            "cast. Cast one of the columns in the stream, before the join; for a time write "
            "DATE '…', TIMESTAMP '…Z' or TIMESTAMP_NTZ '…'."
        )
    return found


def _common_number(left: _Typed, right: _Typed) -> pa.DataType | None:
    one, other = left.type, right.type
    if _is_float(one) or _is_float(other):
        columns = [part for part in (left, right) if not part.literal]
        # Arrow rounds a decimal to a double in another way than Spark.
        if any(pa.types.is_decimal(part.type) for part in columns):
            return None
        return pa.float64()
    if pa.types.is_integer(one) and pa.types.is_integer(other) and pa.uint64() not in (one, other):
        return one if _DIGITS[one] > _DIGITS[other] else other
    (digits, scale), (more_digits, more_scale) = _digits(one), _digits(other)
    whole = max(digits - scale, more_digits - more_scale)
    return _decimal_type(whole + max(scale, more_scale), max(scale, more_scale))


def _same_strings(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    both = (pa.string(), pa.large_string())
    return pa.large_string() if one in both and other in both else None


def _same_binaries(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    both = all(any(test(kind) for test in tests) for kind in (one, other))
    return pa.large_binary() if both else None


def _same_dates(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    return pa.date32() if pa.types.is_date(one) and pa.types.is_date(other) else None


def _same_timestamps(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if not (pa.types.is_timestamp(one) and pa.types.is_timestamp(other)):
        return None
    if (one.tz is None) != (other.tz is None):
        return None
    unit = max(one.unit, other.unit, key=["s", "ms", "us", "ns"].index)
    return pa.timestamp(unit, None if one.tz is None else "UTC")


_FAMILIES: Final = (_same_strings, _same_binaries, _same_dates, _same_timestamps)


def _logical(kind: str, left: _Typed, right: _Typed) -> _Typed:
    for part in (left, right):
        _demand(part, pa.bool_(), kind)
    one, other = _cast(left, pa.bool_()), _cast(right, pa.bool_())
    both = pc.and_kleene if kind == "and" else pc.or_kleene
    return _Typed(pa.bool_(), lambda pairs: both(one(pairs), other(pairs)))


def _demand(part: _Typed, kind: pa.DataType, what: str) -> None:
    if part.type not in (kind, pa.null()):
        raise OptionError(
            f"The condition has {what!r} of {part.type}; it must be {kind}. Use a comparison there."
        )


def _comparison(kind: str, left: _Typed, right: _Typed) -> _Typed:
    common = _common(left, right)
    one, other = _cast(left, common), _cast(right, common)
    if pa.types.is_null(common) and kind in ("<=>", "is distinct from"):
        return _constant(to_arrow(np.array([kind == "<=>"]))[0], pa.bool_())
    if pa.types.is_null(common):
        return _Typed(pa.null(), one)
    if pa.types.is_nested(common):
        raise OptionError(f"The condition compares values of {common}. Use columns inside them.")
    if kind in (">", ">="):
        one, other, kind = other, one, {">": "<", ">=": "<="}[kind]
    negated = kind in ("<>", "is distinct from")
    null_safe = kind in ("<=>", "is distinct from")
    test = _COMPARED.get(kind, pc.equal)
    compare = _with_nan(test) if _is_float(common) else test

    def run(pairs: pa.RecordBatch) -> _Values:
        first, second = one(pairs), other(pairs)
        found = compare(first, second)
        if null_safe:
            found = pc.coalesce(found, pc.and_(pc.is_null(first), pc.is_null(second)))
        return pc.invert(found) if negated else found

    return _Typed(pa.bool_(), run)


def _with_nan(
    compare: Callable[[_Values, _Values], _Values],
) -> Callable[[_Values, _Values], _Values]:
    """The comparison with NaN equal to itself and greater than any number."""
    strictly = compare is pc.less
    equal = compare is pc.equal

    def run(one: _Values, other: _Values) -> _Values:
        found, nan = compare(one, other), pc.is_nan(other)
        if equal:
            nan = pc.and_kleene(pc.is_nan(one), nan)
        elif strictly:
            nan = pc.and_kleene(pc.invert(pc.is_nan(one)), nan)
        else:
            # Whatever is not null is at most NaN.
            nan = pc.and_kleene(pc.is_valid(one), nan)
        either = pc.or_kleene(found, nan)
        return either

    return run


def _arithmetic(kind: str, left: _Typed, right: _Typed) -> _Typed:
    for part in (left, right):
        if not _is_number(part.type) or part.type == pa.uint64():
            raise OptionError(
                f"The condition has {kind!r} with {part.type}. Use numbers there, and compute "
                "anything else in the stream, before the join."
            )
    operation = _ARITHMETIC[kind]
    types = (left.type, right.type)
    if any(map(pa.types.is_decimal, types)) and not any(map(_is_float, types)):
        return _decimal_arithmetic(kind, left, right)
    common = _common(left, right)
    one, other = _cast(left, common), _cast(right, common)
    return _Typed(common, lambda pairs: operation(one(pairs), other(pairs)))


def _decimal_arithmetic(kind: str, left: _Typed, right: _Typed) -> _Typed:
    (digits, scale), (more_digits, more_scale) = _digits(left.type), _digits(right.type)
    if kind == "*":
        result = _decimal_type(digits + more_digits + 1, scale + more_scale)
    else:
        whole = max(digits - scale, more_digits - more_scale)
        result = _decimal_type(whole + max(scale, more_scale) + 1, max(scale, more_scale))
    one = _cast(left, pa.decimal128(digits, scale))
    other = _cast(right, pa.decimal128(more_digits, more_scale))
    operation = _ARITHMETIC[kind]
    return _Typed(result, lambda pairs: operation(one(pairs), other(pairs)))


def _not(node: Node, parts: list[_Typed]) -> _Typed:
    (part,) = parts
    _demand(part, pa.bool_(), "not")
    run = _cast(part, pa.bool_())
    return _Typed(pa.bool_(), lambda pairs: pc.invert(run(pairs)))


def _is_null(node: Node, parts: list[_Typed]) -> _Typed:
    (part,) = parts
    return _Typed(pa.bool_(), lambda pairs: pc.is_null(part.run(pairs)))


def _is_truth(node: Node, parts: list[_Typed]) -> _Typed:
    (part,) = parts
    _demand(part, pa.bool_(), node.kind)
    run, no = _cast(part, pa.bool_()), to_arrow(np.array([False]))[0]
    wanted = node.kind == "is true"

    def truth(pairs: pa.RecordBatch) -> _Values:
        values = run(pairs)
        return pc.coalesce(values if wanted else pc.invert(values), no)

    return _Typed(pa.bool_(), truth)


def _of_number(node: Node, parts: list[_Typed]) -> _Typed:
    (part,) = parts
    if not _is_number(part.type) or part.type == pa.uint64():
        raise OptionError(f"The condition has {node.kind!r} of {part.type}. Use a number there.")
    operation = pc.abs_checked if node.kind == "abs" else pc.negate_checked
    literal = f"-{part.literal}" if part.literal and node.kind == "negative" else ""
    return _Typed(part.type, lambda pairs: operation(part.run(pairs)), literal)


def _length(node: Node, parts: list[_Typed]) -> _Typed:
    (part,) = parts
    if part.type not in (pa.string(), pa.large_string()):
        raise OptionError(f"The condition has length of {part.type}. Use a string there.")
    return _Typed(pa.int32(), lambda pairs: pc.utf8_length(part.run(pairs)).cast(pa.int32()))


def _isnan(node: Node, parts: list[_Typed]) -> _Typed:
    (part,) = parts
    if not _is_float(part.type):
        raise OptionError(f"The condition has isnan of {part.type}. Use a floating-point number.")
    no = to_arrow(np.array([False]))[0]
    return _Typed(pa.bool_(), lambda pairs: pc.coalesce(pc.is_nan(part.run(pairs)), no))


def _like(node: Node, parts: list[_Typed]) -> _Typed:
    (part,) = parts
    if part.type not in (pa.string(), pa.large_string()):
        raise OptionError(f"The condition has like of {part.type}. Use a string there.")
    pattern = _regex(node.text)
    return _Typed(
        pa.bool_(), lambda pairs: pc.match_substring_regex(part.run(pairs), pattern=pattern)
    )


def _regex(pattern: str) -> str:
    r"""The pattern of LIKE as a regular expression.

    >>> _regex("a_%")
    '(?s)\\Aa..*\\z'
    """
    found, at = "", 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            at += 1
            if pattern[at : at + 1] not in ("_", "%", "\\"):
                raise OptionError(
                    f"The pattern {pattern!r} of like has a backslash that escapes nothing. Use it "
                    "before _, % or another backslash only."
                )
            found += re.escape(pattern[at])
        else:
            found += {"_": ".", "%": ".*"}.get(sign) or re.escape(sign)
        at += 1
    return rf"(?s)\A{found}\z"


def _coalesce(node: Node, parts: list[_Typed]) -> _Typed:
    common = parts[0]
    for part in parts[1:]:
        common = _Typed(_common(common, part), common.run, common.literal and part.literal)
    runs = [_cast(part, common.type) for part in parts]
    return _Typed(common.type, lambda pairs: pc.coalesce(*(run(pairs) for run in runs)))


_FUNCTIONS: Final[Mapping[str, Callable[[Node, list[_Typed]], _Typed]]] = {
    "not": _not,
    "is null": _is_null,
    "is true": _is_truth,
    "is false": _is_truth,
    "negative": _of_number,
    "abs": _of_number,
    "length": _length,
    "isnan": _isnan,
    "like": _like,
    "coalesce": _coalesce,
}
