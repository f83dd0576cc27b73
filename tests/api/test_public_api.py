"""The public API is what `public_api.txt` says: a change of it is a decision, not an accident.

`python tests/api/test_public_api.py` writes the file anew.
"""

from __future__ import annotations

import difflib
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import semistream as ss

GOLDEN = Path(__file__).with_name("public_api.txt")


def public_api() -> str:
    """Every public name with its signature; of classes, their public members too."""
    return "".join(f"{line}\n" for name in ss.__all__ for line in _lines(name, getattr(ss, name)))


def _lines(name: str, value: object) -> Iterator[str]:
    if inspect.ismodule(value):
        yield f"module {name}"
        errors = [thing for thing in vars(value).values() if inspect.isclass(thing)]
        for error in sorted(errors, key=lambda error: error.__name__):
            yield f"  {error.__name__}({', '.join(base.__name__ for base in error.__bases__)})"
    elif inspect.isclass(value):
        yield f"class {name}"
        yield from (f"  {line}" for line in _members(value))
    elif callable(value):
        yield f"{name}{_signature(value)}"
    else:
        yield f"{name} = {value!r}"


def _members(cls: type) -> Iterator[str]:
    constructor = cls.__dict__.get("__init__")
    if is_dataclass(cls):
        yield from (f"{field.name}: {field.type}" for field in fields(cls))
    elif constructor is not None and cls.__name__ in _MADE_BY_USERS:
        yield f"__init__{_signature(constructor)}"
    for name, member in sorted(inspect.getmembers(cls)):
        if name.startswith("_") or name in _names(cls) or name in INNER.get(cls.__name__, ()):
            continue
        if isinstance(member, property):
            assert member.fget is not None
            yield f"{name} -> {inspect.signature(member.fget).return_annotation}"
        elif callable(member) and getattr(member, "__module__", "").startswith("semistream"):
            yield f"{name}{_signature(member)}"


def _signature(function: Callable[..., object]) -> str:
    """Without quotes around annotations, and with defaults by name."""
    shown = str(inspect.signature(function)).replace("'", "")
    return re.sub(
        r"<[a-z-]+ (\w+)( at 0x\w+)?>", r"\1", re.sub(r"built-in function", "function", shown)
    )


def _names(cls: type) -> set[str]:
    return {field.name for field in fields(cls)} if is_dataclass(cls) else set()


_OF_MASTERS = {
    *("code_column", "codec", "filter_bytes", "held", "index_bytes", "is_live", "latest_version"),
    *("locator", "locator_frame_bytes", "manifest", "membership_filter", "moment", "pages"),
    *("reader", "storage", "stored_schema", "use_builder", "use_databases", "use_follower"),
    "widest_row",
}
INNER = {
    "MasterTable": _OF_MASTERS,
    # What it has from master tables of files, and refuses, is not promised either.
    "DatabaseMaster": {
        *_OF_MASTERS,
        *("at", "at_version", "build", "cache", "cached", "can_be_mapped", "compact", "delete"),
        *("from_arrow", "history", "is_far", "is_shard", "rows_among", "rows_between"),
        *("rows_without_key", "shard", "shard_count", "sync", "upsert", "vacuum", "valid"),
    },
    "Condition": {"master_columns"},
    "Engine": {"check", "inherit", "learned", "leave", "use_sample"},
    "Sample": {"of", "of_columns"},
    "JoinShape": {
        *("check_batch", "kept_schema", "key_codes", "plain", "row_codes"),
        *("true_matches", "tuple_bytes"),
    },
    "JoinPlan": {"buffered_pages", "pinned_in_disk_buffer"},
    "ParquetSink": {"check", "folder", "write"},
    "TableSink": {"check", "write"},
    "Retry": {"backoff_seconds", "deadline_seconds", "due", "route"},
    "Shedding": {"considers", "open"},
    "PricedClock": {"bind"},
    "Expectation": {"lines"},
}
"""Members that other parts of semistream use and that are not promised to users."""

_MADE_BY_USERS = ("MetricsListener", "ParquetSink", "Pipeline", "PricedClock", "TableSink")


def test_the_public_api_is_as_written_down() -> None:
    written, found = GOLDEN.read_text("utf-8"), public_api()
    changed = difflib.unified_diff(
        written.splitlines(), found.splitlines(), "public_api.txt", "now", lineterm="", n=0
    )
    assert written == found, (
        "The public API has changed. If that is meant, say so in CHANGELOG.md and run "
        "python tests/api/test_public_api.py:\n" + "\n".join(changed)
    )


def test_dir_shows_the_lazy_names_and_nothing_else() -> None:
    shown = [name for name in dir(ss) if not name.startswith("_")]
    assert shown == sorted(ss.__all__)
    for name in ss.__all__:
        assert getattr(ss, name).__doc__, name


def test_what_a_public_function_takes_or_returns_is_public() -> None:
    """Own types in signatures are exported, so that users can name them."""
    missing = {
        f"{name}: {kind}"
        for name in ss.__all__
        for function in _functions(name, getattr(ss, name))
        for kind in _own_types(function)
        if kind not in ss.__all__
    }
    assert missing == set()


def _functions(name: str, value: object) -> Iterator[object]:
    """A public function, or the public methods and properties of a class."""
    if inspect.isfunction(value):
        yield value
    elif inspect.isclass(value):
        for key, member in inspect.getmembers(value):
            found = member.fget if isinstance(member, property) else member
            own = getattr(found, "__module__", None) or ""
            inner = key.startswith("_") or key in INNER.get(name, ())
            if inspect.isroutine(found) and own.startswith("semistream") and not inner:
                yield found


def _own_types(function: object) -> Iterator[str]:
    hints = typing.get_type_hints(function)
    for hint in hints.values():
        yield from _own(hint)


def _own(hint: object) -> Iterator[str]:
    for part in typing.get_args(hint):
        yield from _own(part)
    module = getattr(hint, "__module__", "")
    if inspect.isclass(hint) and module.startswith("semistream") and not _is_alias(hint):
        yield hint.__name__


def _is_alias(hint: type) -> bool:
    """Protocols say what is accepted; users need not name them."""
    return getattr(hint, "_is_protocol", False)


def test_the_engine_alone_does_not_load_spark() -> None:
    code = "import sys, semistream; semistream.engine; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


if __name__ == "__main__":
    GOLDEN.write_text(public_api(), "utf-8")
