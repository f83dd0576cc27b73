"""`[[step]]` tables of a pipeline file: what tuples go through before they are joined.

The `kind` of a step says which function it is, and the other keys are that function's arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semistream.cli.file_tables import FileTable
from semistream.errors import MasterNotFoundError, PipelineFileError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.relation import MasterTable

__all__ = ["STEPS", "StepTable"]


@dataclass(frozen=True, kw_only=True)
class StepTable(FileTable):
    """A step of any kind."""

    kind: str

    @classmethod
    def kind_of(cls, found: dict[str, Any], where: str) -> type[StepTable]:
        """The table of a step's kind; `PipelineFileError` if there is no such kind."""
        kind = found.get("kind")
        if not isinstance(kind, str) or kind not in STEPS:
            said = "is missing: kind" if kind is None else f"has kind = {kind!r}"
            raise PipelineFileError(f"[{where}] {said}. Known kinds are: {', '.join(STEPS)}.")
        return STEPS[kind]

    @property
    def __name__(self) -> str:
        """What messages call the step."""
        return self.kind

    def check(self, where: str) -> None:
        """Raise what the step would without Spark; `where` names the step."""

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The frame after the step; each micro-batch has the newest version of masters."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SurrogateKeys(StepTable):
    """`ss.surrogate_keys`; with `key` and `surrogate`, the key table is made if there is none."""

    keys: str
    on: str | list[str] | dict[str, str]
    key: dict[str, str] | None = None
    surrogate: str | None = None
    first: int | None = None
    memory: int | str = "64MB"
    io: str = "buffered"
    keep: int | float | None = None

    def check(self, where: str) -> None:
        """Look at the key table, or at what it would be."""
        from semistream.relation.key_table import key_schema, surrogates_in

        if (self.key is None) != (self.surrogate is None) or (
            self.first is not None and not self.key
        ):
            raise PipelineFileError(
                f"[{where}] needs key and surrogate to make a key table, and first goes with them. "
                "Give both, or leave all out for a table that there is."
            )
        try:
            table = _opened(self.keys)
        except MasterNotFoundError:
            if self.key is None or self.surrogate is None:
                raise
            key_schema(self.key, self.surrogate, self._first)
            _check(tuple(self.key), self.on, self.memory)
        else:
            surrogates_in(table)
            _check(table.key, self.on, self.memory)

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The tuples with their surrogates."""
        from semistream.spark.transformations.surrogates import surrogate_keys

        terms: dict[str, Any] = {} if self.keep is None else {"keep": self.keep}
        terms |= {"on": self.on, "memory": self.memory, "io": self.io}
        return surrogate_keys(frame, self._table(), **terms)

    def _table(self) -> MasterTable:
        from semistream.relation.key_table import key_table

        if self.key is None or self.surrogate is None:
            return _opened(self.keys)
        return key_table(self.keys, key=self.key, surrogate=self.surrogate, first=self._first)

    @property
    def _first(self) -> int:
        return 1 if self.first is None else self.first


@dataclass(frozen=True, kw_only=True)
class _WithMaster(StepTable):
    """A step that looks tuples up in the newest version of a master."""

    master: str
    on: str | list[str] | dict[str, str]
    memory: int | str = "64MB"
    io: str = "buffered"

    def check(self, _: str) -> None:
        """Open the master."""
        _check(_opened(self.master).key, self.on, self.memory)

    def _terms(self) -> dict[str, Any]:
        return {
            "master": _opened(self.master),
            "on": self.on,
            "memory": self.memory,
            "io": self.io,
        }


@dataclass(frozen=True, kw_only=True)
class Deduplicate(_WithMaster):
    """`ss.deduplicate`."""

    first_by: str | None = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The tuples that are new."""
        from semistream.spark.transformations.duplicates import deduplicate

        return deduplicate(frame, first_by=self.first_by, **self._terms())


@dataclass(frozen=True, kw_only=True)
class SplitNew(_WithMaster):
    """`ss.split_new`."""

    compare: list[str] | dict[str, str] | None = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The tuples with a column `change`."""
        from semistream.spark.transformations.changes import split_new

        return split_new(frame, compare=self.compare, **self._terms())


@dataclass(frozen=True, kw_only=True)
class Select(StepTable):
    """SQL expressions that make the columns; "*" stands for those that there are."""

    columns: list[str]

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The tuples with these columns."""
        from semistream.spark.records import selected

        return selected(frame, self.columns)


@dataclass(frozen=True, kw_only=True)
class Where(StepTable):
    """Leaves out tuples for which an SQL predicate does not hold."""

    predicate: str

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The tuples for which it holds."""
        return frame.where(self.predicate)


STEPS: Final[dict[str, type[StepTable]]] = {
    "surrogate_keys": SurrogateKeys,
    "deduplicate": Deduplicate,
    "split_new": SplitNew,
    "select": Select,
    "where": Where,
}


def _opened(path: str) -> MasterTable:
    from semistream.relation import MasterTable

    return MasterTable.open(path)


def _check(key: tuple[str, ...], on: Any, memory: int | str) -> None:
    """Raise if the key cannot be this, or the memory is no size."""
    from semistream.budget import parse_memory
    from semistream.parts.join_shape import resolve_on

    resolve_on(on, key)
    parse_memory(memory)
