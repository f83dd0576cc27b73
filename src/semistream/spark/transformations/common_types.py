"""Types whose values can be compared, or stored, without losing anything.

Spark compares unlike types by casting one side: a string to a number, which may fail; a long to a
double, which may round; a date to a timestamp, by the session's time zone. Only pairs with a type
that holds all values of both are taken here.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

__all__ = ["common_type", "holds"]

_DIGITS: Final[dict[type[DataType], int]] = {
    ByteType: 3,
    ShortType: 5,
    IntegerType: 10,
    LongType: 19,
}
"""The decimal digits of whole numbers, from the narrowest type to the widest."""
_FRACTIONS: Final = (FloatType, DoubleType)
_LIKE_ITSELF: Final = (
    BinaryType,
    BooleanType,
    DateType,
    TimestampNTZType,
    TimestampType,
)
_MOST_DIGITS: Final = 38


def common_type(one: DataType, other: DataType) -> DataType | None:
    """A type that holds all values of both, so that they can be compared; None if there is none.

    >>> common_type(IntegerType(), DecimalType(5, 2)), common_type(LongType(), DoubleType())
    (DecimalType(12,2), None)
    """
    if isinstance(other, NullType):
        one, other = other, one
    if isinstance(one, NullType):
        return other if isinstance(other, NullType) else common_type(other, other)
    if isinstance(one, StructType) and isinstance(other, StructType):
        return _common_struct(one, other)
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        inner = common_type(one.elementType, other.elementType)
        return None if inner is None else ArrayType(inner)
    if isinstance(one, StringType) and isinstance(other, StringType):
        by_bytes = one.isUTF8BinaryCollation() and other.isUTF8BinaryCollation()
        return StringType() if by_bytes else None
    if isinstance(one, DayTimeIntervalType) and isinstance(other, DayTimeIntervalType):
        # All are microseconds; their types say only how they are written.
        return DayTimeIntervalType()
    if type(one) in _LIKE_ITSELF:
        return one if one == other else None
    # `TimeType` is not in every version of Spark.
    if type(one) is type(other) and type(one).__name__ == "TimeType":
        return max(one, other, key=lambda kind: getattr(kind, "precision", 0))
    return _common_number(one, other)


def holds(store: DataType, values: DataType) -> bool:
    """Whether a column of the type `store` can hold all values of the type `values`."""
    if store.simpleString() == values.simpleString():
        return True
    common = common_type(store, values)
    return common is not None and common == common_type(store, store)


def _common_struct(one: StructType, other: StructType) -> DataType | None:
    """By fields, which must have the same names in the same order."""
    if one.names != other.names:
        return None
    pairs = zip(one.fields, other.fields, strict=True)
    kinds = [common_type(mine.dataType, theirs.dataType) for mine, theirs in pairs]
    fields = [StructField(n, k) for n, k in zip(one.names, kinds, strict=True) if k is not None]
    return StructType(fields) if len(fields) == len(kinds) else None


def _common_number(one: DataType, other: DataType) -> DataType | None:
    kinds = (type(one), type(other))
    if all(kind in _DIGITS for kind in kinds):
        return max(one, other, key=lambda kind: _DIGITS[type(kind)])
    if any(kind in _FRACTIONS for kind in kinds):
        if kinds == (FloatType, FloatType):
            return FloatType()
        # A double has 53 bits for the digits: enough for whole numbers of 32 bits.
        exact = (*_FRACTIONS, ByteType, ShortType, IntegerType)
        return DoubleType() if all(kind in exact for kind in kinds) else None
    decimals = [_as_decimal(kind) for kind in (one, other)]
    known = [kind for kind in decimals if kind is not None]
    if len(known) < 2:
        return None
    scale = max(kind.scale for kind in known)
    digits = scale + max(kind.precision - kind.scale for kind in known)
    return DecimalType(digits, scale) if digits <= _MOST_DIGITS else None


def _as_decimal(kind: DataType) -> DecimalType | None:
    if isinstance(kind, DecimalType):
        return kind
    digits = _DIGITS.get(type(kind))
    return None if digits is None else DecimalType(digits, 0)
