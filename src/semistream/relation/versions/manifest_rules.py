"""Is a manifest one, as a whole? Asked when it is read, before anything in it is followed.

Its checksum shows that it is as it was written, not that whoever wrote it did so properly.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from semistream.errors import SemistreamError
from semistream.keys import KeyCodec
from semistream.relation.storage import CODECS

__all__ = ["OPTIONAL", "is_plain_name", "manifest_fault", "unknown_fields"]

_MOST: Final = 2**62


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_list(value: object, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(of, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def is_plain_name(name: object) -> bool:
    """Whether it is the name of a file in its own folder, and leads nowhere else."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {*name} & {*"/\\\0"}


def _is_file(value: object) -> bool:
    return (
        isinstance(value, dict)
        and {"name", "bytes"} <= value.keys() <= {"name", "bytes", "checksum"}
        and is_plain_name(value["name"])
        and _is_count(value["bytes"])
        and _is_text(value.get("checksum", ""))
    )


_TYPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "version": (lambda v: _is_count(v) and v > 0, "a number from 1 on"),
    "key": (lambda v: _is_list(v, _is_text), "a list of names"),
    "layout": (lambda v: v in ("key", "given"), '"key" or "given"'),
    "row_count": (_is_count, "a number"),
    "page_count": (_is_count, "a number"),
    "rows_without_key": (_is_count, "a number"),
    "page_bytes": (lambda v: _is_count(v) and v > 0, "a number from 1 on"),
    "widest_row": (_is_count, "a number"),
    "schema": (_is_text, "an Arrow schema"),
    "code_column": (lambda v: v is None or _is_text(v), "a name or null"),
    "files": (
        lambda v: isinstance(v, dict) and all(map(_is_file, v.values())),
        "an object of files inside data/",
    ),
    "page_files": (lambda v: _is_list(v, _is_file), "a list of files inside data/"),
    "shard_starts": (lambda v: _is_list(v, _is_count), "a list of numbers"),
    "locator_files": (lambda v: _is_list(v, _is_file), "a list of files inside data/"),
    "locator_starts": (lambda v: _is_list(v, _is_count), "a list of numbers"),
    "operation": (_is_text, "a text"),
    "created": (_is_text, "a text"),
    "build_id": (_is_text, "a text"),
    "compression": (lambda v: v in CODECS, f"one of {', '.join(CODECS)}"),
    "valid": (lambda v: _is_list(v, _is_text) and len(v) == 2, "a list of two names"),
}
OPTIONAL: Final = {"compression", "valid"}
"""Fields that a manifest has only if they say something."""


def manifest_fault(content: Mapping[str, Any], version: int) -> str | None:
    """What is wrong with the fields of the manifest of this version; None if nothing is."""
    missing = sorted(_TYPES.keys() - content.keys() - OPTIONAL)
    if missing:
        return f"it has no {', '.join(missing)}"
    for name, (fits, what) in _TYPES.items():
        if name in content and not fits(content[name]):
            return f"its {name} must be {what}, and is {_short(content[name])}"
    if content["version"] != version:
        return f"it is that of version {content['version']}, by another name"
    return _schema_fault(content) or _parts_fault(content)


def _schema_fault(content: Mapping[str, Any]) -> str | None:
    """Whether the columns, the key and the column of codes fit together."""
    try:
        message = pa.py_buffer(base64.b64decode(content["schema"], validate=True))
        schema = pa.ipc.read_schema(message)
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"its schema cannot be read ({error})"
    key, code = content["key"], content["code_column"]
    if not {*content.get("valid", ())} <= {*schema.names}:
        return f"its valid is {content['valid']}, and its columns are {', '.join(schema.names)}"
    names = schema.names if code is None else schema.names[:-1]
    if len(set(schema.names)) != len(schema.names) or not key or not {*key} <= {*names}:
        return f"its key is {', '.join(key)}, and its columns are {', '.join(schema.names)}"
    try:
        codec = KeyCodec([schema.field(name) for name in key])
    except SemistreamError as error:
        return f"its key cannot be one ({error})"
    if codec.exact != (code is None):
        return f"a key of these types does not go with code_column {code!r}"
    if code is not None and (schema.names[-1] != code or schema.field(code).type != pa.int64()):
        return f"its last column is not {code!r} with codes"
    return None


def _parts_fault(content: Mapping[str, Any]) -> str | None:
    """Whether shards, pages and files fit together."""
    if not _ascends(content["shard_starts"], content["page_count"]):
        return "its shard_starts do not go from 0 to its page_count"
    given = content["layout"] == "given"
    roles = {"index", "locator_index"} if given else {"index"}
    if not roles <= content["files"].keys() <= roles | {"filter"}:
        return f"its files are {', '.join(sorted(content['files']))}"
    starts = content["locator_starts"]
    if given and (len(starts) != len(content["shard_starts"]) or not _ascends(starts)):
        return "its locator_starts do not fit its shards"
    if not given and (starts or content["locator_files"]):
        return 'it has a locator, which layout "key" has not'
    return None


def _ascends(starts: list[int], end: int | None = None) -> bool:
    return (
        len(starts) > 1
        and starts[0] == 0
        and all(a <= b for a, b in pairwise(starts))
        and (end is None or starts[-1] == end)
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def unknown_fields(content: Iterable[str]) -> list[str]:
    """Fields that this semistream does not know."""
    return sorted({*content} - _TYPES.keys() - {"format_version"})
