"""Counters of a join in the progress of its query, by `DataFrame.observe`.

    rows ─► rows, and a last one per task that has its counters ─► observe ─► rows

Spark adds up what it observes in columns. A Python function has no other way to tell it numbers: so
each task ends with a row of nulls that has its counters, as JSON, in a column more; both are taken
out again behind `observe`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from semistream.errors import OptionError
from semistream.spark.columns import PREFIX, column
from semistream.spark.task_metrics import Report

__all__ = ["observed"]

_COLUMN: Final = PREFIX + "counters"
_SUMS: Final = (
    *("arrived", "joined", "unmatched", "outputs"),
    *("front_hits", "in_place_probes", "from_disk", "pages_read", "bytes_read"),
)
_LARGEST: Final = ("peak_memory", "budget")

_Batches: TypeAlias = Iterator[pa.RecordBatch]


def observed(
    frame: DataFrame,
    task: Callable[[_Batches, Report | None], _Batches],
    schema: StructType,
    name: str,
    shown: str,
) -> DataFrame:
    """What the task makes of a frame, with its counters observed under a name.

    All columns are nullable. `shown` is the name of the operator in Spark's UI.
    """
    if not name:
        raise OptionError(f"observe={name!r} must be a name, as in observe='join'.")
    fields = [StructField(one.name, one.dataType, True, one.metadata) for one in schema.fields]
    bare = to_arrow_schema(StructType(fields), timezone="UTC")

    def counted(batches: _Batches) -> _Batches:
        return _counted(task, bare, batches)

    counted.__name__ = counted.__qualname__ = shown
    made = frame.mapInArrow(counted, StructType([*fields, StructField(_COLUMN, StringType())]))
    counter = {
        one: F.get_json_object(column(_COLUMN), f"$.{one}").cast("long")
        for one in (*_SUMS, *_LARGEST)
    }
    told = [F.coalesce(F.sum(counter[one]), F.lit(0)).alias(one) for one in _SUMS]
    told += [F.max(counter[one]).alias(one) for one in _LARGEST]
    tasks = F.count(column(_COLUMN)).alias("tasks")
    return made.observe(name, tasks, *told).where(column(_COLUMN).isNull()).drop(_COLUMN)


def _counted(
    task: Callable[[_Batches, Report | None], _Batches], bare: pa.Schema, batches: _Batches
) -> _Batches:
    """The rows of a task, and the one with its counters."""
    told: dict[str, Any] = {}
    schema = bare
    for batch in task(batches, told.update):
        schema = batch.schema
        yield _wider(batch, pa.nulls(batch.num_rows, pa.string()))
    if told:
        nothing = [pa.nulls(1, field.type) for field in schema]
        fields = [pa.field(field.name, field.type) for field in schema]
        last = pa.RecordBatch.from_arrays(nothing, schema=pa.schema(fields))
        yield _wider(last, pa.nulls(1, pa.string()).fill_null(json.dumps(_counters(told))))


def _wider(batch: pa.RecordBatch, counters: pa.Array) -> pa.RecordBatch:
    """A batch with one more column, all of which are nullable."""
    names = [*batch.schema.names, _COLUMN]
    return pa.RecordBatch.from_arrays([*batch.columns, counters], names=names)


def _counters(record: Mapping[str, Any]) -> dict[str, int]:
    in_memory = record["front_hits"] + record["in_place_probes"]
    asked = record["joined"] + record["unmatched"]
    found = {name: record[name] for name in (*_SUMS, *_LARGEST) if name in record}
    return found | {"from_disk": max(asked - in_memory, 0)}
