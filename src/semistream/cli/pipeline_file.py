"""The pipeline file that `semistream run` reads, checked before Spark starts.

The dataclasses below are its tables, their fields the keys; a field without a default is required.
Only names and types are checked here. `ss.Pipeline` checks the values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semistream.budget import parse_memory
from semistream.cli.file_tables import FileTable, missing_keys, read_file
from semistream.cli.step_tables import StepTable
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
]

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


@dataclass(frozen=True)
class SourceTable(FileTable):
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

    def check_keys(self, where: str) -> None:
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
class MasterRef(FileTable):
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

    def check_keys(self, where: str) -> None:
        """Raise `PipelineFileError` unless it names one master, in files or in a database."""
        inside = {"table": self.table, "key": self.key}
        missing = [name for name, value in inside.items() if value is None]
        if self.database is None and self.path is None:
            raise PipelineFileError(missing_keys(["path"], where))
        if self.database is not None and missing:
            raise PipelineFileError(missing_keys(missing, where))
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
class SampleTable(FileTable):
    """`sample` in `[join]`, as `ss.Sample` takes it; a number is a share."""

    share: int | float
    seed: int = 0
    by: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class JoinTable(FileTable):
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

    def check_keys(self, where: str) -> None:
        """Raise `PipelineFileError` unless the memory is a size."""
        try:
            parse_memory(self.memory)
        except OptionError as error:
            raise PipelineFileError(f"[{where}] {error}") from None


@dataclass(frozen=True)
class SinkTable(FileTable):
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

    def check_keys(self, where: str) -> None:
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
            raise PipelineFileError(missing_keys(missing, where))
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

    def check_keys(self, where: str) -> None:
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
            super().check_keys(where)


@dataclass(frozen=True)
class RejectedTable(SinkTable):
    """`[rejected]`: a sink for rejected tuples, and the checks that the others must pass."""

    checks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeferredTable(FileTable):
    """`[deferred]`: where deferred tuples wait; needs `batch_target`."""

    path: str


@dataclass(frozen=True)
class PipelineTable(FileTable):
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
class PipelineFile(FileTable, SessionSettings):
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

    def check_keys(self, _: str) -> None:
        """Raise `PipelineFileError` unless there is one master, or look-ups, and not both."""
        if not self.lookup:
            if self.master is None:
                raise PipelineFileError(missing_keys(["master"], ""))
            if self.join.on is None:
                raise PipelineFileError(missing_keys(["on"], "join"))
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
