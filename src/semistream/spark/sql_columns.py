"""A list of columns as SQL has it, "id long, at timestamp", looked at without Spark.

Spark's own parser runs in Java. What is found here, it would refuse too; it knows more.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

from semistream.errors import OptionError

__all__ = ["column_names", "no_columns"]

_NUMBERS: Final = ("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long")
_FRACTIONS: Final = ("float", "real", "double", "decimal", "dec", "numeric")
_TIMES: Final = ("date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "interval")
_TEXTS: Final = ("string", "char", "character", "varchar", "binary")
_OTHERS: Final = ("boolean", "void", "variant", "geometry", "geography", "array", "map", "struct")
_TYPES: Final = (*_NUMBERS, *_FRACTIONS, *_TIMES, *_TEXTS, *_OTHERS)
_WORD: Final = re.compile(
    r"\s*(?:(?P<word>\w+)|`(?P<name>(?:[^`]|``)+)`|(?P<text>'[^']*'|\"[^\"]*\")|(?P<sign>\S))"
)


def column_names(schema: str) -> list[str]:
    """The names of the columns; `OptionError` for a type that there is not, or none at all."""
    names = _names(schema)
    plain = [name.lower() for name in names]
    twice = [name for name, one in zip(names, plain, strict=True) if plain.count(one) > 1]
    if twice:
        raise OptionError(f"schema={schema!r} has the column {twice[0]!r} twice. Leave one out.")
    return names


def _names(schema: str) -> list[str]:
    words = _Words(schema)
    if words.word.lower() == "struct" and words.next == "<":
        words.take()
        return words.inside()
    names = words.columns()
    if words.word:
        raise no_columns(schema)
    return names


def no_columns(schema: object, why: str = "") -> OptionError:
    """What is said of a text that is not a list of columns."""
    return OptionError(
        f"schema={schema!r} is not a list of columns as SQL has it, "
        f'"product_id long, quantity int"{why}.'
    )


class _Words:
    """The words and signs of a list of columns, one after the other."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._found = [found for found in _WORD.finditer(schema) if found[0].strip()]
        self._at = 0

    @property
    def word(self) -> str:
        """The word or sign that comes now; "" at the end."""
        return self._ahead(0)

    @property
    def next(self) -> str:
        """What comes after it."""
        return self._ahead(1)

    def take(self) -> str:
        """Go on; what was there."""
        word = self.word
        self._at += 1
        return word

    def columns(self) -> list[str]:
        """The names of columns up to the end, or to the sign that closes the list."""
        names = []
        while True:
            names.append(self._name())
            if self.word == ":":
                self.take()
            self._type(names[-1])
            # What else a column may have ("not null comment '…'") is for Spark to look at.
            while self.word not in ("", ",", ">"):
                self._skip()
            if self.word != ",":
                return names
            self.take()

    def inside(self) -> list[str]:
        """The columns between < and >."""
        self._need("<")
        names = [] if self.word == ">" else self.columns()
        self._need(">")
        return names

    def _type(self, name: str) -> None:
        kind = self.take().lower()
        if kind not in _TYPES:
            near = difflib.get_close_matches(kind, _TYPES, 1)
            meant = f"; is {near[0]!r} meant?" if near else ""
            has = f"the type {kind!r}{meant}" if kind.isidentifier() else "no type"
            raise no_columns(self._schema, f": the column {name!r} has {has}")
        if kind == "struct":
            self.inside()
        elif kind in ("array", "map"):
            self._need("<")
            self._type(name)
            if kind == "map":
                self._need(",")
                self._type(name)
            self._need(">")
        elif self.word == "(":
            self._skip()

    def _skip(self) -> None:
        """Go on by one, or past all that brackets hold."""
        if self.take() == "(":
            while self.word not in ("", ")"):
                self._skip()
            self._need(")")

    def _name(self) -> str:
        found = self._found[self._at] if self._at < len(self._found) else None
        if found is None or not (found["word"] or found["name"]):
            raise no_columns(self._schema)
        self._at += 1
        return found["word"] or found["name"].replace("``", "`")

    def _need(self, sign: str) -> None:
        if self.take() != sign:
            raise no_columns(self._schema, f": {sign!r} is missing")

    def _ahead(self, by: int) -> str:
        at = self._at + by
        return self._found[at][0].strip() if at < len(self._found) else ""
