"""A batch as a frame: arriving and waiting tuples together, judged, joined, and given a route.

    source, retried, returned ─► verdict ─► join ─► route

All of it is one Spark job, without a shuffle of its own. Rows are counted where they enter and
where they leave. A fingerprint of the tuples' numbers, taken at both places, shows whether each
tuple that entered has left as one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from semistream.errors import MasterChangedError, OptionError
from semistream.parts.join_shape import On, resolve_on
from semistream.relation import MasterTable
from semistream.spark.columns import PREFIX, column
from semistream.spark.pipeline.routes import (
    ATTEMPT,
    DEFER,
    JOIN,
    ROUTE,
    SINCE,
    VERDICT,
    Checks,
    Retry,
)
from semistream.spark.schema import carried_types, still_has

__all__ = ["MATCHED", "NUMBER", "BatchShape", "Joiner", "Tally", "tallied", "tally_of"]

NUMBER: Final = PREFIX + "number"
"""A tuple's number: unique within one run of a batch."""
MATCHED: Final = PREFIX + "matched"
"""Whether the tuple of a row has a master row."""
_ROWS, _MARK, _UNMATCHED = "rows", "mark", "unmatched"

Joiner: TypeAlias = Callable[..., DataFrame]
"""`ss.join`, as a left join, with all arguments that are the same for every batch."""


@dataclass(frozen=True)
class Tally:
    """Rows that have passed one place of a batch."""

    rows: int
    mark: int
    """The exclusive or of a hash of the tuples' numbers."""
    unmatched: int = 0


def tallied(frame: DataFrame) -> tuple[DataFrame, Observation]:
    """The frame, and an observation of the rows that pass when it is written."""
    observation = Observation()
    aggregates = [
        F.count(F.lit(1)).alias(_ROWS),
        F.expr(f"bit_xor(xxhash64({NUMBER}))" if NUMBER in frame.columns else "0").alias(_MARK),
        F.count_if(~F.col(MATCHED) if MATCHED in frame.columns else F.lit(False)).alias(_UNMATCHED),
    ]
    return frame.observe(observation, *aggregates), observation


def tally_of(observation: Observation) -> Tally:
    """The tally of an observation; waits for the job that makes it."""
    found = observation.get
    return Tally(found[_ROWS], found[_MARK] or 0, found[_UNMATCHED])


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
        defers: bool = False,
    ) -> None:
        """Check all that `ss.join` checks, and that no column has a reserved name."""
        taken = [name for name in source.columns if name.lower().startswith(PREFIX)]
        if taken:
            raise OptionError(f"Columns {taken} have names kept for a pipeline. Rename them.")
        self._join, self._retry, self._defers = join, retry, defers
        result = join(source, master, on=on, columns=columns)
        self.stream = source.schema
        self.stream_columns = source.columns
        self.output = result.schema
        self.payload = result.columns[len(source.columns) :]
        self._types = carried_types(master, self.payload)
        self.key = tuple(resolve_on(on, master.key).values())
        self.checks = None if checks is None else Checks.of(self.key, source.columns, checks)

    @property
    def waiting(self) -> StructType:
        """The columns of waiting tuples."""
        # In files any column may be null.
        fields = [StructField(field.name, field.dataType) for field in self.stream.fields]
        if self._retry is not None:
            fields += [StructField(ATTEMPT, IntegerType()), StructField(SINCE, LongType())]
        return StructType(fields)

    def output_names(self) -> list[Column]:
        """The columns of the result."""
        return [column(name) for name in self.output.names]

    def arriving(self, frame: DataFrame) -> DataFrame:
        """Tuples of the source, with the columns of waiting tuples."""
        columns = [column(name) for name in self.stream_columns]
        if self._retry is not None:
            columns += [F.lit(0).alias(ATTEMPT), F.lit(None).cast(LongType()).alias(SINCE)]
        return frame.select(*columns)

    def judged(self, frame: DataFrame, deferred: Column | None = None) -> DataFrame:
        """The tuples with their numbers and verdicts; a bad tuple is rejected, never deferred."""
        columns: list[Column] = [column(name) for name in self.waiting.names]
        verdict = F.lit(JOIN) if self.checks is None else self.checks.verdict()
        if deferred is not None:
            verdict = F.when((verdict == JOIN) & deferred, F.lit(DEFER)).otherwise(verdict)
        if self._judges:
            columns.append(verdict.cast(IntegerType()).alias(VERDICT))
        return frame.select(*columns, F.monotonically_increasing_id().alias(NUMBER))

    def joined(self, frame: DataFrame, master: MasterTable, **folders: str | None) -> DataFrame:
        """The left join: the frame's columns, the master's, and whether there was a match.

        A master row may be all nulls, so the master's key column shows whether there is one. A
        stream column may have the same name as that, so stream columns have numbers for names
        during the join. `folders` are those where `ss.join` leaves something.
        """
        self._check_version(master)
        places = {name: f"{PREFIX}{i}" for i, name in enumerate(frame.columns)}
        numbered = [column(name).alias(place) for name, place in places.items()]
        keys = [places[name] for name in self.key]
        if self._judges:
            keys = [f"{PREFIX}key_{i}" for i in range(len(self.key))]
            is_joined = F.col(VERDICT) == JOIN
            numbered += [
                F.when(is_joined, column(name)).alias(key)
                for name, key in zip(self.key, keys, strict=True)
            ]
        on = dict(zip(keys, master.key, strict=True))
        columns = list(dict.fromkeys([*self.payload, master.key[0]]))
        stream = frame.select(*numbered)
        found = self._join(stream, master, on=on, columns=columns, **folders)
        return found.select(
            *(F.col(place).alias(name) for name, place in places.items()),
            *map(column, self.payload),
            column(master.key[0]).isNotNull().alias(MATCHED),
        )

    def routed(self, frame: DataFrame, at: float, chunks: int) -> DataFrame:
        """The rows with their routes."""
        route = F.lit("unmatched") if self._retry is None else self._retry.route(at)
        route = F.when(F.col(MATCHED), F.lit("joined")).otherwise(route)
        if self._judges:
            chunk = F.pmod(F.xxhash64(NUMBER), F.lit(max(chunks, 1)))
            put_off = F.concat_ws("-", F.lit("deferred"), chunk)
            route = F.when(F.col(VERDICT) == DEFER, put_off).otherwise(route)
            route = F.when(F.col(VERDICT) > JOIN, F.lit("rejected")).otherwise(route)
        routed = frame.withColumn(ROUTE, route)
        if self._retry is None:
            return routed
        # Tuples that go back into the retry queue have been looked for once more.
        waits = F.col(ROUTE).startswith("retry-")
        since = F.when(waits, F.split_part(F.col(ROUTE), F.lit("-"), F.lit(3)).cast(LongType()))
        attempt = F.col(ATTEMPT) + F.when(waits, F.lit(1)).otherwise(F.lit(0))
        return routed.withColumns({ATTEMPT: attempt, SINCE: F.coalesce(since, F.col(SINCE))})

    @property
    def _judges(self) -> bool:
        """Whether tuples have verdicts: some may not be joined."""
        return self.checks is not None or self._defers

    def _check_version(self, master: MasterTable) -> None:
        """Raise if this version lacks a column, or has it with another type."""
        if not still_has(master, self.payload, self._types):
            wanted = dict(zip(self.payload, self._types, strict=True))
            raise MasterChangedError(
                f"Version {master.version} of {master.path} has the columns\n{master.schema}\n"
                f"but the pipeline was started for {wanted}. Make a version of the master that "
                "has them, or start the pipeline again with other columns=[…]."
            )
