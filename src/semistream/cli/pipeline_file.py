"""The pipeline file that `semistream run` reads, checked before Spark starts.

The dataclasses below are its tables, their fields the keys; a field without a default is required.
Only names and types are checked here. `ss.Pipeline` checks the values.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from semistream.budget import parse_memory
from semistream.cli.step_tables import StepTable, step_table
from semistream.environment import filled_url
from semistream.errors import OptionError, PipelineFileError

if TYPE_CHECKING:
    from semistream.relation import MasterTable

__all__ = [
    "LookupTable",
    "MasterRef",
    "PipelineFile",
    "SessionSettings",
    "SinkTable",
    "SourceTable",
    "UnmatchedTable",
    "read_file",
]

Table = TypeVar("Table")
_FILE_FORMATS: Final = ("avro", "csv", "json", "orc", "text")
_DATABASE: Final = (("url", "table"), ("patience",))
_SINK_KEYS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "parquet": ((), ("path", "batch_column")),
    "postgresql": _DATABASE,
    "mariadb": _DATABASE,
    "mysql": _DATABASE,
    "iceberg": (("table",), ("options",)),
    "kafka": (("topic", "options"), ("key",)),
    "": ((), ("path", "table", "options")),
}
"""What each format of a sink needs, and what else it takes; "" is any other."""
_SCHEMES: Final = dict.fromkeys(("postgresql", "postgres"), "postgresql") | dict.fromkeys(
    ("mariadb", "mysql"), "mariadb"
)
"""Which databases are of one kind."""
_SINK_NAMES: Final = ("path", "table", "url", "patience", "topic", "key", "batch_column", "options")
_WORDS: Final = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list of strings",
    dict: "a table",
}


@dataclass(frozen=True)
class SourceTable:
    """`[source]`: the stream, as `spark.readStream` takes it."""

    format: str
    path: str | None = None
    schema: str | None = None
    """As SQL: "id long, name string". Streams of files, and records in JSON, need one."""
    value: str | None = None
    """What a message queue's column `value` has, "json" or "avro"; its fields become columns."""
    key: str | None = None
    """The fields of the messages' keys, as `schema`: a compacted topic for `master sync`."""
    keep: list[str] = field(default_factory=list)
    """Columns of the queue to keep beside those fields, as "topic"."""
    select: list[str] = field(default_factory=list)
    """SQL expressions that make the columns to join, if the source does not have them."""
    options: dict[str, Any] = field(default_factory=dict)

    def check(self, where: str) -> None:
        """Raise `PipelineFileError` unless parsing has what it needs."""
        for name in ("keep", "key"):
            if self.value is None and getattr(self, name):
                raise PipelineFileError(
                    f"[{where}] has {name}, which goes with value. Leave it out."
                )
        if self.value is not None and self.schema is None:
            raise PipelineFileError(
                f'[{where}] has value = "{self.value}", but no schema: add the fields of a record, '
                'as schema = "product_id long, quantity int".'
            )


@dataclass(frozen=True)
class MasterRef:
    """`[master]`: the master table, or a table that stays in a database."""

    path: str | None = None
    cache: str | None = None
    """A folder of the executors' disks, for pages of a master in an object store."""
    cache_bytes: int | str = "10GB"
    database: str | None = None
    """As "postgresql://${DB_HOST}/shop", without a password; with `table` and `key`."""
    table: str | None = None
    key: str | None = None
    credentials: str | None = None
    """With "SHOP", user and password are in the variables SHOP_USER and SHOP_PASSWORD."""

    def check(self, where: str) -> None:
        """Raise `PipelineFileError` unless it names one master, in files or in a database."""
        inside = {"table": self.table, "key": self.key}
        missing = [name for name, value in inside.items() if value is None]
        if self.database is None and self.path is None:
            raise PipelineFileError(_missing(["path"], where))
        if self.database is not None and missing:
            raise PipelineFileError(_missing(missing, where))
        if self.database is not None and (self.path is not None or self.cache is not None):
            raise PipelineFileError(
                f"[{where}] has a database and a path or a cache. A master is in one place, and "
                "rows of a database are not cached. Leave one out."
            )
        if self.database is None and (len(missing) < 2 or self.credentials is not None):
            raise PipelineFileError(
                f"[{where}] has table, key or credentials, which go with database. Leave them out."
            )

    def opened(self) -> MasterTable:
        """Its newest version, or the table in its database."""
        from semistream.relation import DatabaseMaster, MasterTable

        if self.database is not None:
            table, key = self.table or "", self.key or ""
            url = filled_url(self.database)
            return DatabaseMaster(url, table=table, key=key, credentials=self.credentials)
        assert self.path is not None
        master = MasterTable.open(self.path)
        return master if self.cache is None else master.cached(self.cache, self.cache_bytes)


@dataclass(frozen=True)
class JoinedMaster(MasterRef):
    """`[master]` of a pipeline."""

    max_staleness: int | float | str | None = None
    """How far it may be behind its source when a batch begins."""


@dataclass(frozen=True, kw_only=True)
class LookupTable(JoinedMaster):
    """`[[lookup]]`: one of several master tables, and the arguments of `ss.Lookup`."""

    on: str | list[str] | dict[str, str]
    how: str = "inner"
    algorithm: str = "auto"
    columns: list[str] | None = None
    where: str | None = None
    valid: list[str] | None = None
    as_of: list[str] | None = None
    tolerance: int | str | None = None
    io: str = "buffered"
    name: str | None = None
    prefix: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SampleTable:
    """`sample` in `[join]`, as `ss.Sample` takes it; a number is a share."""

    share: int | float
    seed: int = 0
    by: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class JoinTable:
    """`[join]`: arguments of `ss.Pipeline` for the join; with look-ups, memory and sample only."""

    on: str | list[str] | dict[str, str] | None = None
    memory: int | str
    how: str = "left"
    algorithm: str = "auto"
    columns: list[str] | None = None
    where: str | None = None
    valid: list[str] | None = None
    as_of: list[str] | None = None
    tolerance: int | str | None = None
    sample: int | float | SampleTable | None = None
    io: str = "buffered"
    options: dict[str, Any] = field(default_factory=dict)

    def check(self, where: str) -> None:
        """Raise `PipelineFileError` unless the memory is a size."""
        try:
            parse_memory(self.memory)
        except OptionError as error:
            raise PipelineFileError(f"[{where}] {error}") from None


@dataclass(frozen=True)
class SinkTable:
    """`[sink]`: a path for Parquet; or another format, and a table, a path or a topic."""

    path: str | None = None
    format: str = "parquet"
    table: str | None = None
    url: str | None = None
    """Of a database, with `${NAME}` for user and password in the environment."""
    patience: int | float | str | None = None
    """How long to try again when a database does not answer."""
    topic: str | None = None
    key: str | list[str] | None = None
    """The columns that make the key of a record for a topic."""
    batch_column: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def check(self, where: str) -> None:
        """Raise `PipelineFileError` unless it names one place that takes a batch exactly once."""
        if self.format in _FILE_FORMATS:
            raise PipelineFileError(
                f"[{where}] has format = {self.format!r}, which cannot take a batch exactly once. "
                'Leave it out for Parquet, or use one with transactions, as "delta".'
            )
        needed, allowed = _SINK_KEYS.get(self.format, _SINK_KEYS[""])
        given = [name for name in _SINK_NAMES if getattr(self, name)]
        if not needed and (self.path is None) == (self.table is None):
            raise PipelineFileError(f"[{where}] needs a path or a table, and only one of them.")
        missing = [name for name in needed if name not in given]
        if missing:
            raise PipelineFileError(_missing(missing, where))
        unfit = [name for name in given if name not in (*needed, *allowed)]
        if unfit:
            raise PipelineFileError(
                f"[{where}] has {', '.join(unfit)}, which a sink with format = "
                f'"{self.format}" does not take. It takes: {", ".join((*needed, *allowed))}.'
            )
        scheme = (self.url or "").partition(":")[0]
        if scheme in _SCHEMES and _SCHEMES[scheme] != _SCHEMES[self.format]:
            raise PipelineFileError(
                f'[{where}] has format = "{self.format}", and its url is one of {scheme}. Write '
                f'format = "{scheme}", or the url as {self.format}://host/database.'
            )


@dataclass(frozen=True)
class UnmatchedTable(SinkTable):
    """`[unmatched]`: a sink for unmatched tuples, or `retry = true` to let them wait."""

    retry: bool = False
    backoff: int | float | str | None = None
    factor: int | float | None = None
    deadline: int | float | str | None = None
    then: str | None = None
    dead_letters: SinkTable | None = None

    def retry_options(self) -> dict[str, Any]:
        """The given options of the retry queue, without the dead letters."""
        names = ("backoff", "factor", "deadline", "then")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def check(self, where: str) -> None:
        """Raise `PipelineFileError` unless it is either a sink or a retry queue."""
        given = self.retry_options() or self.dead_letters
        if self.retry and (self.path or self.table):
            raise PipelineFileError(
                f"[{where}] has retry = true and a place to write to: tuples wait, or go there. "
                "Leave one of them out, or write the place as [unmatched.dead_letters]."
            )
        if given and not self.retry:
            raise PipelineFileError(
                f"[{where}] says how tuples wait, but not that they do: add retry = true."
            )
        if not self.retry:
            super().check(where)


@dataclass(frozen=True)
class RejectedTable(SinkTable):
    """`[rejected]`: a sink for rejected tuples, and the checks that the others must pass."""

    checks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeferredTable:
    """`[deferred]`: where deferred tuples wait; needs `batch_target`."""

    path: str


@dataclass(frozen=True)
class PipelineTable:
    """`[pipeline]`: settings of the pipeline as a whole."""

    checkpoint: str
    name: str | None = None
    trigger: int | float | str | None = None
    batch_target: int | float | str | None = None
    metrics: str | None = None
    metrics_prometheus: str | None = None
    log: str | None = None
    """A file for Spark's own messages; by default in the checkpoint."""


class SessionSettings:
    """What `[spark]` says of the Spark session, if this command starts it."""

    spark: dict[str, str | list[str]]

    @property
    def connectors(self) -> list[str]:
        """Other systems by name, as "kafka" and "delta"."""
        found = self.spark.get("connectors", [])
        return found if isinstance(found, list) else [found]

    @property
    def settings(self) -> dict[str, str]:
        """Spark's own settings."""
        return {name: str(value) for name, value in self.spark.items() if name != "connectors"}


@dataclass(frozen=True, kw_only=True)
class PipelineFile(SessionSettings):
    """A whole pipeline file."""

    source: SourceTable
    master: JoinedMaster | None = None
    join: JoinTable
    sink: SinkTable
    pipeline: PipelineTable
    lookup: list[LookupTable] = field(default_factory=list)
    """Several masters, instead of `[master]`."""
    step: list[StepTable] = field(default_factory=list)
    """What tuples go through before the join."""
    unmatched: UnmatchedTable | None = None
    rejected: RejectedTable | None = None
    deferred: DeferredTable | None = None
    spark: dict[str, str | list[str]] = field(default_factory=dict)
    """Spark's own settings, and the list `connectors`."""

    def check(self, _: str) -> None:
        """Raise `PipelineFileError` unless there is one master, or look-ups, and not both."""
        if not self.lookup:
            if self.master is None:
                raise PipelineFileError(_missing(["master"], ""))
            if self.join.on is None:
                raise PipelineFileError(_missing(["on"], "join"))
            return
        if self.master is not None:
            raise PipelineFileError(
                "[master] and [[lookup]] both name masters. Write each master as [[lookup]], or "
                "have one."
            )
        if self.join != JoinTable(memory=self.join.memory, sample=self.join.sample):
            raise PipelineFileError(
                "[join] has keys beside memory and sample, but each [[lookup]] has its own on, "
                "how, columns, where and so on. Move them there."
            )

    def sinks(self) -> dict[str, SinkTable]:
        """The tables that are sinks, by their names in the file."""
        found: dict[str, SinkTable | None] = {"[sink]": self.sink, "[rejected]": self.rejected}
        if self.unmatched is not None and self.unmatched.retry:
            found["[unmatched.dead_letters]"] = self.unmatched.dead_letters
        else:
            found["[unmatched]"] = self.unmatched
        return {name: table for name, table in found.items() if table is not None}

    @classmethod
    def read(cls, path: Path) -> PipelineFile:
        """Read and check a file; `PipelineFileError` says what is wrong and where."""
        return read_file(cls, path)


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
    # There is no type for "a dataclass" that `Table` could be bound to.
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in found if name not in known]
    if unknown:
        raise PipelineFileError(_unknown(unknown, list(known), where))
    missing = [
        name
        for name, one in known.items()
        if name not in found and one.default is MISSING and one.default_factory is MISSING
    ]
    if missing:
        raise PipelineFileError(_missing(missing, where))
    hints = get_type_hints(kind)
    below = {name: f"{where}.{name}" if where else name for name in found}
    made = kind(**{name: _value(hints[name], found[name], below[name]) for name in found})
    if isinstance(made, MasterRef | SinkTable | JoinTable | SourceTable | PipelineFile):
        made.check(where)
    return made


def _unknown(names: list[str], known: list[str], where: str) -> str:
    found = ", ".join(names)
    if not where:
        return f"There is no table [{found}]. Known are: {', '.join(f'[{n}]' for n in known)}."
    return f"[{where}] has no key {found}. Known are: {', '.join(known)}."


def _missing(names: list[str], where: str) -> str:
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


def _tables(kind: type[Table], value: Any, where: str) -> list[Table]:
    """Tables of one name, as their dataclass."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise PipelineFileError(f"{where} is no list of tables. Write each as [[{where}]].")
    named = [(f"{where} {number}", one) for number, one in enumerate(value, 1)]
    if kind is StepTable:
        # Each is the table of its own kind.
        return [_made(step_table(one, name), one, name) for name, one in named]  # type: ignore[misc]
    return [_made(kind, one, name) for name, one in named]


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
