"""A batch as a frame: arriving and waiting tuples together, each with its verdict.

    source, retried, returned ─► verdict ─► tasks that join and write

All of it is one Spark job, without a shuffle of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from semistream.errors import OptionError
from semistream.sampling import Sample
from semistream.spark.columns import PREFIX, quoted
from semistream.spark.pipeline.capacity import PUT_OFF
from semistream.spark.pipeline.master_join import MasterJoin
from semistream.spark.pipeline.routes import Checks, Retry
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
from semistream.spark.records import CORRUPT, RECORD

__all__ = ["BatchShape", "check_names"]


def check_names(source: DataFrame) -> None:
    """Raise if a column of the source has a name that a pipeline needs."""
    taken = [name for name in source.columns if name.lower().startswith(PREFIX)]
    if taken:
        raise OptionError(f"Columns {taken} have names kept for a pipeline. Rename them.")


class BatchShape:
    """The columns of stream, master and result, and the steps from one to the next.

    Waiting tuples take memory of the join, so a step adds only columns that are needed.
    """

    def __init__(
        self,
        source: DataFrame,
        join: MasterJoin,
        retry: Retry | None = None,
        checks: Mapping[str, str] | None = None,
        sample: Sample | None = None,
    ) -> None:
        """With `checks`, tuples with a null key are rejected too; `sample` names its columns."""
        self.join, self._retry = join, retry
        self._stream = source.schema
        self.stream_columns = source.columns
        self.checks = None if checks is None else Checks.of(join.key, source.columns, checks)
        self.hidden = CORRUPT if checks is not None and CORRUPT in source.columns else None
        names = () if sample is None else tuple(sample.by or ())
        by = tuple(place(source.columns.index(name)) for name in names)
        self.sample = None if sample is None else replace(sample, by=by)
        """Of the tuples of a judged frame."""
        self.output = StructType([f for f in join.output.fields if f.name != self.hidden])

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
        # Tuples that wait are good: their records are not needed.
        has_record = source is not None and RECORD in source.columns
        record = [f"CAST(NULL AS STRING) AS {RECORD}"] if has_record else []
        if source is not None:
            own = [RECORD] if has_record else []
            new = [f"0 AS {ATTEMPT}", f"CAST(NULL AS BIGINT) AS {SINCE}"] if added else []
            source = source.selectExpr(*names, *own, *new, f"0 AS {ORIGIN}")
        back = [
            part.selectExpr(*names, *record, *added, f"{number} AS {ORIGIN}")
            for number, part in enumerate(waiting, 1)
            if part is not None
        ]
        return reduce(DataFrame.unionByName, back if source is None else [source, *back])

    def judged(self, frame: DataFrame) -> DataFrame:
        """The tuples with their verdicts; a bad tuple is rejected, never deferred.

        Stream columns have numbers for names from here on. If the records came along, a bad tuple
        has its own in the column that is hidden.
        """
        values = {name: quoted(name) for name in self.stream_columns}
        if self.checks is not None and self.hidden is not None and RECORD in frame.columns:
            is_bad = " OR ".join(f"({fault})" for fault in self.checks.faults)
            values[self.hidden] = f"CASE WHEN {is_bad} THEN coalesce({self.hidden}, {RECORD}) END"
        columns = [f"{values[name]} AS {place(i)}" for i, name in enumerate(self.stream_columns)]
        columns += [name for name in (ATTEMPT, SINCE, ORIGIN) if name in frame.columns]
        cases = [] if self.checks is None else self.checks.cases()
        cases += [f"WHEN {PUT_OFF} THEN {DEFER}"] if PUT_OFF in frame.columns else []
        if cases:
            columns.append(f"CAST(CASE {' '.join(cases)} ELSE {JOIN} END AS INT) AS {VERDICT}")
        return frame.selectExpr(*columns)
