"""The join of a batch with several masters.

    tuples ─► star, each look-up a left join ─► witness ─► rows of joined and unmatched tuples

A tuple is unmatched if a look-up with how="inner" has no row for it. If another one has several,
the tuple comes out of the star several times, and goes on once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.errors import CheckpointError
from semistream.relation import MasterTable
from semistream.spark.columns import PREFIX
from semistream.spark.pipeline.batch_log import BatchRecord
from semistream.spark.pipeline.master_join import Planned, Versions, check_version
from semistream.spark.pipeline.stage_task import NUMBER, ORIGIN, VERDICT, place
from semistream.spark.schema import carried_types, stream_schema
from semistream.spark.star import StarTask, star_operator, star_task
from semistream.spark.task_metrics import Report
from semistream.star.lookup import Lookup, check_lookups, check_routes, named
from semistream.star.shape import StarShape

__all__ = ["StarJoin", "WitnessedStar"]

WITNESS: Final = PREFIX + "matched"


@dataclass(frozen=True)
class WitnessedStar:
    """A star as `StageTask` takes a join: with a witness, and each unmatched tuple once."""

    star: StarTask
    """All its look-ups are left joins of numbered tuples."""
    names: Mapping[str, str]
    """What the masters' columns are called in the result."""
    witnesses: tuple[str, ...]
    """Columns that are null only if a look-up with how="inner" has found nothing."""

    def __call__(
        self, batches: Iterator[pa.RecordBatch], report: Report | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Join the batches of one Spark task."""
        seen = np.zeros(0, np.bool_)
        for rows in self.star(batches, report):
            lacking = [w for w in self.witnesses if rows.column(w).null_count]
            if not lacking:
                yield self._named(rows, rows.column(NUMBER))
                continue
            matched = np.ones(rows.num_rows, np.bool_)
            for name in lacking:
                matched &= to_numpy(rows.column(name).is_valid())
            numbers = to_numpy(rows.column(NUMBER))
            seen = _grown(seen, int(numbers.max()) + 1)
            kept = matched | _first(numbers, ~matched, seen)
            seen[numbers[~matched]] = True
            yield self._named(rows.filter(to_arrow(kept)), _witness(matched[kept]))

    def _named(self, rows: pa.RecordBatch, witness: pa.Array) -> pa.RecordBatch:
        """The rows under the names of the result, with their witness."""
        known = [name for name in rows.schema.names if name not in self.witnesses]
        known += [name for name in self.witnesses if name in self.names]
        columns = [*rows.select(known).columns, witness]
        names = [*(self.names.get(name, name) for name in known), WITNESS]
        return pa.RecordBatch.from_arrays(columns, names=names)


class _Part(NamedTuple):
    """A look-up of the star, and what it has to do with the stream."""

    lookup: Lookup
    key: tuple[str, ...]
    """The stream's columns."""
    payload: list[str]
    types: tuple[str, ...]


class StarJoin:
    """A join with several masters, in one operator."""

    def __init__(self, source: DataFrame, lookups: Sequence[Lookup], memory: int | str) -> None:
        """Check all that `ss.join_star` checks."""
        checked, self._memory = check_lookups(lookups), memory
        check_routes(checked)
        _, self.output = star_task(source, [_left(one) for one in checked], memory=memory)
        self.payload: Sequence[str] = self.output.names[len(source.columns) :]
        self._places = {name: place(i) for i, name in enumerate(source.columns)}
        shape = StarShape(stream_schema(source), checked)
        self._parts = [
            _Part(
                one.lookup,
                tuple(one.keys),
                list(one.shape.payload),
                carried_types(one.lookup.master, one.shape.payload),
            )
            for one in shape.lookups
        ]
        needed = [part for part in self._parts if not part.lookup.keeps]
        self.key = tuple(dict.fromkeys(name for part in needed for name in part.key))
        largest = max(needed or self._parts, key=lambda part: part.lookup.master.row_count)
        self.costly = largest.key
        self._masters = {part.lookup.name: part.lookup.master for part in self._parts}
        places = {name: str(master.path) for name, master in self._masters.items()}
        self.places: Mapping[str, str] = places
        limits = [(one.master.location, one.most_behind) for one in checked]
        self.most_behind: Mapping[str, float] = {
            place: min(most for at, most in limits if at == place and most is not None)
            for place, limit in limits
            if limit is not None
        }
        self._tasks: dict[bool, WitnessedStar] = {}

    def newest(self) -> Versions:
        """The newest version of each master; a master that is looked up twice has one."""
        locations = {name: master.location for name, master in self._masters.items()}
        newest = {one: MasterTable.latest_version(one) for one in set(locations.values())}
        versions = {name: newest[location] for name, location in locations.items()}
        return Versions(sum(versions.values()), versions)

    def located(self, versions: Versions) -> Mapping[str, int]:
        """Where each master is, with its version."""
        return {self._masters[name].location: one for name, one in versions.versions.items()}

    def masters(self) -> Iterable[MasterTable]:
        """The masters of all look-ups."""
        return self._masters.values()

    def planned(self, frame: DataFrame, record: BatchRecord, learned: str | None) -> Planned:
        """The star of a judged frame's tuples."""
        self._open(record)
        waits = ORIGIN in frame.columns
        if waits not in self._tasks:
            self._tasks[waits] = self._task(frame.drop(VERDICT, ORIGIN))
        task = self._tasks[waits]
        name = star_operator(task.star).__name__
        keeping = [
            replace(one, join=replace(one.join, learned=learned)) for one in task.star.lookups
        ]
        star = replace(task.star, lookups=tuple(keeping))
        return Planned(replace(task, star=star), name, WITNESS, lambda frame: frame)

    def _open(self, record: BatchRecord) -> None:
        """Open the versions on record; what was planned for others is forgotten."""
        if set(record.versions) != set(self._masters):
            before = [*record.versions] or "one master"
            raise CheckpointError(
                f"Batch {record.number} was begun with {before}, and the pipeline has the look-ups "
                f"{[*self._masters]} now. Finish it with the same masters, then change them."
            )
        for part in self._parts:
            name = part.lookup.name
            version, master = record.versions[name], self._masters[name]
            if master.version != version:
                self._masters[name] = master = master.at_version(version)
                self._tasks.clear()
                with named(part.lookup):
                    check_version(master, part.payload, part.types)

    def _task(self, stream: DataFrame) -> WitnessedStar:
        """The star for frames with these columns, which have numbers for names."""
        lookups: list[Lookup] = []
        names: dict[str, str] = {}
        witnesses: list[str] = []
        for i, part in enumerate(self._parts):
            lookup, master = part.lookup, self._masters[part.lookup.name]
            # Columns of two masters may have the same name, and so may a key.
            prefix = f"{PREFIX}{i}_"
            names |= {prefix + name: lookup.prefix + name for name in part.payload}
            columns = list(part.payload)
            if not lookup.keeps:
                witnesses.append(prefix + master.key[0])
                columns = list(dict.fromkeys([*columns, master.key[0]]))
            on = {self._places[name]: key for name, key in lookup.pairs().items()}
            made = lookup.changed(
                master=master,
                on=on,
                how="left",
                columns=columns,
                prefix=prefix,
                # It is looked at when a batch begins, and not when it runs again.
                max_staleness=None,
            )
            made.known_as = {place: name for name, place in self._places.items()}
            lookups.append(made)
        star, _ = star_task(stream, lookups, memory=self._memory)
        return WitnessedStar(star, names, tuple(witnesses))


def _left(lookup: Lookup) -> Lookup:
    return lookup.changed(how="left")


def _first(
    numbers: NDArray[np.int64], chosen: NDArray[np.bool_], seen: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Of the chosen rows, the first of each number that was not seen before."""
    places = np.flatnonzero(chosen & ~seen[numbers])
    _, first = np.unique(numbers[places], return_index=True)
    found = np.zeros(len(numbers), np.bool_)
    found[places[first]] = True
    return found


def _grown(marks: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Marks for at least so many numbers."""
    if size <= len(marks):
        return marks
    grown = np.zeros(max(size, 2 * len(marks)), np.bool_)
    grown[: len(marks)] = marks
    return grown


def _witness(matched: NDArray[np.bool_]) -> pa.Array:
    """True for rows of joined tuples, null for others."""
    bits = pa.py_buffer(np.packbits(matched, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(matched), [bits, bits])
