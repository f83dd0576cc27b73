"""A batch as a frame: arriving and waiting tuples together, each with its verdict.

    source, retried, returned ─► verdict ─► tasks that join and write

All of it is one Spark job, without a shuffle of its own. The frames of most batches have the same
columns, so what their tasks do is planned once for each version of the master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from semistream.errors import MasterChangedError, OptionError
from semistream.parts.join_shape import On, resolve_on
from semistream.relation import MasterTable
from semistream.spark.columns import PREFIX, quoted
from semistream.spark.join import JoinTask
from semistream.spark.pipeline.capacity import PUT_OFF
from semistream.spark.pipeline.routes import CORRUPT, Checks, Retry
from semistream.spark.pipeline.stage_task import (
    ATTEMPT,
    DEFER,
    JOIN,
    ORIGIN,
    REASON,
    SINCE,
    VERDICT,
    place,
)
from semistream.spark.schema import carried_types, still_has

__all__ = ["BatchShape", "Joiner"]

Joiner: TypeAlias = Callable[..., tuple[JoinTask, StructType]]
"""`join_task` of a left join, with all arguments that are the same for every batch."""


class BatchShape:
    """The columns of stream, master and result, and the steps from one to the next.

    Waiting tuples take memory of the join, so a step adds only columns that are needed.
    """

    def __init__(
        self,
        source: DataFrame,
        master: MasterTable,
        on: On,
        columns: Sequence[str] | None,
        join: Joiner,
        retry: Retry | None = None,
        checks: Mapping[str, str] | None = None,
    ) -> None:
        """Check all that `ss.join` checks, and that no column has a reserved name."""
        taken = [name for name in source.columns if name.lower().startswith(PREFIX)]
        if taken:
            raise OptionError(f"Columns {taken} have names kept for a pipeline. Rename them.")
        self._join, self._retry = join, retry
        _, result = join(source, master, on=on, columns=columns)
        self._stream = source.schema
        self.stream_columns = source.columns
        self.payload = result.names[len(source.columns) :]
        self._types = carried_types(master, self.payload)
        self.key = tuple(resolve_on(on, master.key).values())
        self.checks = None if checks is None else Checks.of(self.key, source.columns, checks)
        self.hidden = CORRUPT if checks is not None and CORRUPT in source.columns else None
        self.output = StructType([f for f in result.fields if f.name != self.hidden])
        self._tasks: dict[tuple[int, bool], JoinTask] = {}

    @property
    def waiting(self) -> StructType:
        """The columns of waiting tuples."""
        # In files any column may be null.
        fields = [StructField(field.name, field.dataType) for field in self._stream.fields]
        if self._retry is not None:
            fields += [StructField(ATTEMPT, IntegerType()), StructField(SINCE, LongType())]
        return StructType(fields)

    @property
    def kept(self) -> StructType:
        """The columns of tuples that are not joined, in sinks."""
        return StructType([f for f in self._stream.fields if f.name != self.hidden])

    @property
    def rejected(self) -> StructType:
        """The columns of rejected tuples."""
        return StructType([*self._stream.fields, StructField(REASON, StringType())])

    def gathered(self, parts: Sequence[DataFrame | None]) -> DataFrame:
        """Tuples of the source, the retry queue and the deferred queue in one frame.

        They get columns that say where they come from, unless all are from the source.
        """
        source, *waiting = parts
        if source is not None and all(part is None for part in waiting):
            return source
        names = [*map(quoted, self.stream_columns)]
        added = [ATTEMPT, SINCE] if self._retry is not None else []
        if source is not None:
            new = [f"0 AS {ATTEMPT}", f"CAST(NULL AS BIGINT) AS {SINCE}"] if added else []
            source = source.selectExpr(*names, *new, f"0 AS {ORIGIN}")
        back = [
            part.selectExpr(*names, *added, f"{number} AS {ORIGIN}")
            for number, part in enumerate(waiting, 1)
            if part is not None
        ]
        return reduce(DataFrame.unionByName, back if source is None else [source, *back])

    def judged(self, frame: DataFrame) -> DataFrame:
        """The tuples with their verdicts; a bad tuple is rejected, never deferred.

        Stream columns have numbers for names from here on.
        """
        columns = [f"{quoted(name)} AS {place(i)}" for i, name in enumerate(self.stream_columns)]
        columns += [name for name in (ATTEMPT, SINCE, ORIGIN) if name in frame.columns]
        cases = [] if self.checks is None else self.checks.cases()
        cases += [f"WHEN {PUT_OFF} THEN {DEFER}"] if PUT_OFF in frame.columns else []
        if cases:
            columns.append(f"CAST(CASE {' '.join(cases)} ELSE {JOIN} END AS INT) AS {VERDICT}")
        return frame.selectExpr(*columns)

    def join_task(self, frame: DataFrame, master: MasterTable) -> JoinTask:
        """The left join of a judged frame's tuples.

        A master row may be all nulls, so the master's first key column, which comes with the
        others, shows whether there is one.
        """
        waits = ORIGIN in frame.columns
        if (master.version, waits) not in self._tasks:
            self._check_version(master)
            stream = frame.drop(VERDICT, ORIGIN)
            places = {name: place(i) for i, name in enumerate(self.stream_columns)}
            on = {places[name]: key for name, key in zip(self.key, master.key, strict=True)}
            columns = list(dict.fromkeys([*self.payload, master.key[0]]))
            older = [key for key in self._tasks if key[0] != master.version]
            for key in older:
                del self._tasks[key]
            known_as = {place: name for name, place in places.items()}
            self._tasks[master.version, waits], _ = self._join(
                stream, master, on=on, columns=columns, known_as=known_as
            )
        return self._tasks[master.version, waits]

    def _check_version(self, master: MasterTable) -> None:
        """Raise if this version lacks a column, or has it with another type."""
        if not still_has(master, self.payload, self._types):
            wanted = dict(zip(self.payload, self._types, strict=True))
            raise MasterChangedError(
                f"Version {master.version} of {master.path} has the columns\n{master.schema}\n"
                f"but the pipeline was started for {wanted}. Make a version of the master that "
                "has them, or start the pipeline again with other columns=[…]."
            )
