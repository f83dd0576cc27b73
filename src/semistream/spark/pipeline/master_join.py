"""The join of a batch with its master; `star_join` has that with several.

The frames of most batches have the same columns, so what their tasks do is planned once for each
version of the master.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from semistream.errors import CheckpointError, MasterChangedError
from semistream.parts.join_shape import On, resolve_on
from semistream.relation import MasterTable
from semistream.spark.join import JoinTask, operator, placed
from semistream.spark.pipeline.batch_log import BatchRecord
from semistream.spark.pipeline.stage_task import ORIGIN, VERDICT, Join, place
from semistream.spark.schema import carried_types, still_has

__all__ = [
    "Joiner",
    "MasterJoin",
    "OneMaster",
    "Planned",
    "Versions",
    "check_version",
    "shared_moments",
]

Joiner: TypeAlias = Callable[..., tuple[JoinTask, StructType]]
"""`join_task` of a left join, with all arguments that are the same for every batch."""
_NONE: Final[Mapping[str, int]] = MappingProxyType({})


class Versions(NamedTuple):
    """Versions of masters, as records of batches have them."""

    version: int
    """Of the master; of several, the sum, which grows whenever one of them has a newer version."""
    versions: Mapping[str, int] = _NONE
    """Of each look-up's master, by name, if there are several."""


class Planned(NamedTuple):
    """The join of a batch's tuples, ready to run."""

    task: Join
    name: str
    """What Spark's UI shows."""
    witness: str
    """A column of the result that is null only if a tuple is unmatched."""
    placed: Callable[[DataFrame], DataFrame]
    """Puts each tuple of a frame in a Spark task that can join it."""


class MasterJoin(Protocol):
    """What batches are joined with: one master or several."""

    output: StructType
    """Of the stream's columns, then the master's."""
    payload: Sequence[str]
    """The master's columns."""
    key: tuple[str, ...]
    """Columns of the stream: a tuple that has a null there is unmatched."""
    costly: tuple[str, ...]
    """Columns of the stream: tuples that are alike there are cheap to join together."""
    places: Mapping[str, str]
    """Where each master is, by the name of its look-up, for people to read; "" if there is one."""
    most_behind: Mapping[str, float]
    """How many seconds a master may be behind its source, by its place, if a look-up says so."""

    def newest(self) -> Versions:
        """The versions that a batch would take now."""

    def located(self, versions: Versions) -> Mapping[str, int]:
        """Where each master is, with its version."""

    def masters(self) -> Iterable[MasterTable]:
        """What was opened for the batch that was planned last."""

    def planned(self, frame: DataFrame, record: BatchRecord, learned: str | None) -> Planned:
        """The left join of a judged frame, with the versions on record."""


class OneMaster:
    """A join with one master."""

    def __init__(
        self,
        source: DataFrame,
        master: MasterTable,
        on: On,
        columns: Sequence[str] | None,
        join: Joiner,
    ) -> None:
        """Check all that `ss.join` checks."""
        self._join, self._location, self._master = join, master.location, master
        self.places: Mapping[str, str] = {"": str(master.path)}
        self.most_behind: Mapping[str, float] = {}
        _, self.output = join(source, master, on=on, columns=columns)
        self.payload: Sequence[str] = self.output.names[len(source.columns) :]
        self.key = self.costly = tuple(resolve_on(on, master.key).values())
        self._stream = source.columns
        self._types = carried_types(master, self.payload)
        self._tasks: dict[tuple[int, bool], JoinTask] = {}

    def newest(self) -> Versions:
        """The newest version of the master."""
        return Versions(MasterTable.latest_version(self._location))

    def located(self, versions: Versions) -> Mapping[str, int]:
        """Where the master is, with its version."""
        return {self._location: versions.version}

    def masters(self) -> Iterable[MasterTable]:
        """The master."""
        return [self._master]

    def planned(self, frame: DataFrame, record: BatchRecord, learned: str | None) -> Planned:
        """The left join of a judged frame's tuples.

        A master row may be all nulls, so the master's first key column, which comes with the
        others, shows whether there is one.
        """
        if record.versions:
            raise CheckpointError(
                f"Batch {record.number} was begun with the masters {[*record.versions]}, and the "
                "pipeline has one now. Finish it with the same masters, then change them."
            )
        if self._master.version != record.version:
            self._master = self._master.at_version(record.version)
        task = self._task(frame, self._master)
        where = partial(placed, task=task, master=self._master)
        name = operator(task).__name__
        return Planned(replace(task, learned=learned), name, task.on[0][1], where)

    def _task(self, frame: DataFrame, master: MasterTable) -> JoinTask:
        waits = ORIGIN in frame.columns
        if (master.version, waits) not in self._tasks:
            check_version(master, self.payload, self._types)
            places = {name: place(i) for i, name in enumerate(self._stream)}
            on = {places[name]: key for name, key in zip(self.key, master.key, strict=True)}
            columns = list(dict.fromkeys([*self.payload, master.key[0]]))
            older = [key for key in self._tasks if key[0] != master.version]
            for key in older:
                del self._tasks[key]
            known_as = {place: name for name, place in places.items()}
            self._tasks[master.version, waits], _ = self._join(
                frame.drop(VERDICT, ORIGIN), master, on=on, columns=columns, known_as=known_as
            )
        return self._tasks[master.version, waits]


@contextmanager
def shared_moments(masters: Iterable[MasterTable]) -> Iterator[dict[str, str]]:
    """Moments that all tasks of a batch can see until the block ends, by location.

    Those of databases that can share them: files never change.
    """
    by_location = {master.location: master for master in masters}
    with ExitStack() as stack:
        moments = {name: stack.enter_context(one.shared()) for name, one in by_location.items()}
        yield {name: moment for name, moment in moments.items() if moment is not None}


def check_version(master: MasterTable, payload: Sequence[str], types: Sequence[str]) -> None:
    """Raise if this version lacks a column, or has it with another type."""
    if not still_has(master, payload, types):
        wanted = dict(zip(payload, types, strict=True))
        raise MasterChangedError(
            f"Version {master.version} of {master.path} has the columns\n{master.schema}\n"
            f"but the pipeline was started for {wanted}. Make a version of the master that "
            "has them, or start the pipeline again with other columns=[…]."
        )
