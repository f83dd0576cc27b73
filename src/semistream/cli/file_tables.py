"""How a TOML file becomes dataclasses, one for each table, with errors that name the place.

The fields of a dataclass are the keys of its table; a field without a default is required.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from semistream.errors import PipelineFileError

__all__ = ["FileTable", "missing_keys", "read_file"]

_WORDS: Final = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list of strings",
    dict: "a table",
}


@dataclass(frozen=True)
class FileTable:
    """A table of a file."""

    @classmethod
    def kind_of(cls, found: dict[str, Any], where: str) -> type[FileTable]:
        """The dataclass for these keys: this one, or one of its kinds."""
        return cls

    def check_keys(self, where: str) -> None:
        """Raise `PipelineFileError` unless the keys go together."""


Table = TypeVar("Table", bound=FileTable)


def read_file(kind: type[Table], path: Path) -> Table:
    """A TOML file as its dataclass, checked."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise PipelineFileError(
            f"{path} cannot be read: {error.strerror}. Give the path of a pipeline file."
        ) from error
    except ValueError as error:
        raise PipelineFileError(f"{path} is not TOML: {error}. Mend it there.") from error
    try:
        return _made(kind, found, "")
    except PipelineFileError as error:
        raise PipelineFileError(f"{path}: {error}") from None


def _made(kind: type[Table], found: dict[str, Any], where: str) -> Table:
    """A table of the file as its dataclass."""
    known = {one.name: one for one in fields(kind)}
    unknown = [name for name in found if name not in known]
    if unknown:
        raise PipelineFileError(_unknown(unknown, list(known), where))
    missing = [
        name
        for name, one in known.items()
        if name not in found and one.default is MISSING and one.default_factory is MISSING
    ]
    if missing:
        raise PipelineFileError(missing_keys(missing, where))
    hints = get_type_hints(kind)
    below = {name: f"{where}.{name}" if where else name for name in found}
    made = kind(**{name: _value(hints[name], found[name], below[name]) for name in found})
    made.check_keys(where)
    return made


def _unknown(names: list[str], known: list[str], where: str) -> str:
    found = ", ".join(names)
    if not where:
        return f"There is no table [{found}]. Known are: {', '.join(f'[{n}]' for n in known)}."
    return f"[{where}] has no key {found}. Known are: {', '.join(known)}."


def missing_keys(names: list[str], where: str) -> str:
    """What to say when keys of a table are missing, or tables of a file."""
    if not where:
        return f"Missing: {', '.join(f'[{name}]' for name in names)}. Add what is missing."
    return f"[{where}] is missing: {', '.join(names)}. Add what is missing."


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value, if its type is one that the hint allows; a table becomes its dataclass."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    for kind in kinds:
        if hasattr(kind, "__dataclass_fields__") and isinstance(value, dict):
            return _made(kind, value, where)
        if _is_tables(kind):
            return _tables(get_args(kind)[0], value, where)
        if _is_a(kind, value):
            return value
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if isinstance(value, dict) and all(get_origin(kind) is dict for kind in kinds):
        inner = get_args(kinds[0])[1]
        name = next(name for name, one in value.items() if not _is_a(inner, one))
        shown = name if name.isidentifier() else f'"{name}"'
        return _value(inner, value[name], f"{where}.{shown}")
    words = dict.fromkeys(_WORDS[_plain(kind)] for kind in kinds)
    from semistream.relation.storage import scrubbed

    shown = scrubbed(repr(value))
    # As TOML has it: "4", "true".
    as_text = f': "{shown.lower()}"' if str in kinds and isinstance(value, int | float) else ""
    raise PipelineFileError(f"{where} is {shown}; give {' or '.join(words)}{as_text}.")


def _is_tables(kind: Any) -> bool:
    """Whether a hint is for a list of tables."""
    inner = get_args(kind)
    return get_origin(kind) is list and hasattr(inner[0], "__dataclass_fields__")


def _tables(kind: type[FileTable], value: Any, where: str) -> list[FileTable]:
    """Tables of one name, each as the dataclass of its kind."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise PipelineFileError(f"{where} is no list of tables. Write each as [[{where}]].")
    named = [(f"{where} {number}", one) for number, one in enumerate(value, 1)]
    return [_made(kind.kind_of(one, name), one, name) for name, one in named]


def _plain(kind: Any) -> type:
    """The built-in type that a hint stands for; a dataclass counts as a table."""
    plain = get_origin(kind) or kind
    return plain if plain in _WORDS else dict


def _is_a(kind: Any, value: Any) -> bool:
    """Whether a TOML value has this type; the items of lists and tables are checked too."""
    inner = get_args(kind)
    if _plain(kind) is list:
        return isinstance(value, list) and all(_is_a(inner[0], one) for one in value)
    if isinstance(kind, UnionType):
        return any(_is_a(one, value) for one in inner)
    if get_origin(kind) is dict:
        within = value.values() if isinstance(value, dict) else [None]
        return isinstance(value, dict) and all(
            inner[1] is Any or _is_a(inner[1], v) for v in within
        )
    # Not isinstance: in Python True is an int, but in a file it is not a number.
    return type(value) is kind
