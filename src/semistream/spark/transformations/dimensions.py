"""`load_dimension`: a batch of changes goes into a master table, with or without history.

    type 1    the newest tuple of a key replaces the master's row, if it differs
    type 2    every tuple that says something new begins a row; the row before it ends there

Both compare the batch with what the master has and upsert only what differs, so a batch that is
loaded again changes nothing. If another writer was first, they compare again.

Type 2, for one key. Each point in time has the values from then on:

    stored      |---- red ----|------- blue -------…
    tuples           red            green      green
    result      |---- red ----|-blue-|-- green ----…
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.types import StructType

from semistream.errors import MasterExistsError, OptionError
from semistream.parts.join_shape import On, resolve_on
from semistream.relation import MasterTable
from semistream.relation.storage import Location
from semistream.relation.updates.finding import key_with_several_rows
from semistream.spark.columns import PREFIX, check_plain, column
from semistream.spark.schema import spark_types
from semistream.spark.transformations.changes import common_types, compared_columns
from semistream.spark.transformations.common_types import holds
from semistream.spark.transformations.look_up import beside

__all__ = ["load_dimension"]

_MOST_ATTEMPTS: Final = 20
_KIND, _BOUND, _SAME, _RANK = (f"{PREFIX}{name}" for name in ("kind", "bound", "same", "rank"))
_STORED, _REPLACED, _ADDED = 0, 1, 2


def load_dimension(
    df: DataFrame,
    path: Location,
    *,
    on: On,
    at: str,
    compare: Sequence[str] | None = None,
    valid: tuple[str, str] | None = None,
    memory: int | str = "64MB",
) -> MasterTable:
    """Bring a master table up to date with a batch of tuples; returns its newest version.

    Without `valid`, the master has one row per key, that of the key's newest tuple (a slowly
    changing dimension of type 1). Several rows of a key are not replaced, but refused. With
    `valid=("valid_from", "valid_to")` it has a row for each change (type 2): a tuple that differs
    from the row valid at its time begins a new one, and the other ends there. The last row's
    `valid_to` is null. Tuples may come late and in any order.

    Only what differs is written, so the last batch loaded again changes nothing, and makes no
    version. The rows to be written are collected in the driver's memory. Tuples with a null in the
    key, or in `at`, are left out. In a stream, call it from `foreachBatch`, or as the sink of a
    `Pipeline`.

    Args:
        df: a batch DataFrame with the master's columns, without those of `valid`. Their types are
            the master's, or narrower ones: what could lose something is refused.
        path: the master table; its newest version is updated.
        on: the key columns in `df`, as for `join`.
        at: the column with the time of a tuple. Of tuples with equal key and time, one wins, and
            always the same one.
        compare: the columns that count as a change, by default all but the key, and those of
            `valid`. If the master stores `at`, older tuples never replace newer rows.
        valid: the master's columns with the begin and the end of a row; [begin, end). They have the
            type of `at`, or a wider one.
        memory: the budget of each task of the look-up.
    """
    given: object = df
    if not isinstance(given, DataFrame) or given.isStreaming:
        raise OptionError(
            "df must be a batch DataFrame. For a stream, call ss.load_dimension in foreachBatch, "
            "or as the sink of an ss.Pipeline."
        )
    for attempt in range(1, _MOST_ATTEMPTS + 1):
        master = MasterTable.open(path)
        load = _Load.of(df, master, on, at, compare, valid, memory)
        rows = load.rows_without_history() if valid is None else load.rows_with_history(*valid)
        table: pa.Table = rows.toArrow()
        if not table.num_rows:
            return master
        if valid is None:
            _check_one_row_each(master, table)
        try:
            return master.upsert(table)
        except MasterExistsError:
            if attempt == _MOST_ATTEMPTS:
                raise
    raise AssertionError("not reached")


@dataclass(frozen=True)
class _Load:
    """A batch, with the master's names for its columns, and the master."""

    tuples: DataFrame
    """The values of each tuple and its time, cast to the master's types."""
    master: MasterTable
    at: str
    """The column of `tuples` with the time."""
    values: tuple[str, ...]
    """The master's columns besides key and validity."""
    compare: tuple[str, ...]
    memory: int | str

    @classmethod
    def of(
        cls,
        df: DataFrame,
        master: MasterTable,
        on: On,
        at: str,
        compare: Sequence[str] | None,
        valid: tuple[str, str] | None,
        memory: int | str,
    ) -> _Load:
        """Check the arguments."""
        check_plain(df.columns)
        stream_key = resolve_on(on, master.key, df.columns)
        others = [name for name in master.schema.names if name not in master.key]
        if valid is not None and (len({*valid} & {*others}) != 2 or len(valid) != 2):
            raise OptionError(
                f"valid={valid!r} must name two columns of the master, for begin and end of a row; "
                f"beside its key it has {others}."
            )
        if at in stream_key.values():
            raise OptionError(f"at={at!r} is the key. Name a column with the time of a tuple.")
        values = [n for n in master.schema.names if n not in {*master.key, *(valid or ())}]
        missing = [name for name in (*values, at) if name not in df.columns]
        if missing or not values:
            raise OptionError(
                f"The batch has the columns {df.columns}, without {missing}; the master has "
                f"{master.schema.names}. Give a value for each column of the master, and at=…."
            )
        types = spark_types(master)
        _check_types(df.schema, types, [(name, name) for name in values])
        if valid:
            _check_types(df.schema, types, [(at, valid[0]), (at, valid[1])])
        left_out = {*stream_key.values(), *(valid or ())} | ({at} if valid else set())
        pairs = compared_columns(df.select(*map(column, values)), master, compare, left_out)
        if any(ours != theirs for ours, theirs in pairs.items()):
            raise OptionError(f"compare={compare!r} must be a list of the master's columns.")
        common_types(df.schema, types, pairs)
        common_types(df.schema, df.schema, {at: at})
        key = [column(stream).alias(name) for name, stream in stream_key.items()]
        own = [column(name).cast(types[name].dataType).alias(name) for name in values]
        time = [] if at in values else [column(at)]
        present = reduce(
            Column.__and__, [column(n).isNotNull() for n in (*stream_key.values(), at)]
        )
        tuples = df.where(present).select(*key, *own, *time)
        return cls(tuples, master, at, tuple(values), tuple(pairs), memory)

    def rows_without_history(self) -> DataFrame:
        """The rows to upsert so that each key has the values of its newest tuple."""
        newest = Window.partitionBy(*self._key()).orderBy(column(self.at).desc(), *self._ties())
        ranked = self.tuples.withColumn(_RANK, F.row_number().over(newest))
        tuples = ranked.where(f"{_RANK} = 1").drop(_RANK)
        is_timed = self.at in self.values
        wanted = list(dict.fromkeys([*self.compare, *([self.at] if is_timed else [])]))
        joined, ours, witness = self._beside(tuples, wanted)
        differs = ~reduce(Column.__and__, [ours[n].eqNullSafe(column(n)) for n in self.compare])
        if is_timed:
            stored = column(self.at)
            differs &= stored.isNull() | (ours[self.at] >= stored)
        rows = joined.where(witness.isNull() | differs)
        return rows.select(*(ours[name].alias(name) for name in self.master.schema.names))

    def rows_with_history(self, begin: str, end: str) -> DataFrame:
        """All rows of the keys whose history changes, as they are afterwards."""
        points = self._merged(self._points(begin, end), begin, end)
        by_key = Window.partitionBy(*self._key())
        in_time = by_key.orderBy(column(begin))
        before = in_time.rowsBetween(Window.unboundedPreceding, -1)
        # A row that is added ends where the stored row ended in which it begins, if there is one.
        is_added = column(_KIND) == _ADDED
        around = F.last(F.when(~is_added, F.struct(column(end).alias("end"))), True).over(before)
        inside = around["end"] > column(begin)
        bound = F.when(is_added, F.when(inside, around["end"])).otherwise(column(end))
        points = points.withColumn(_BOUND, bound)
        # It says nothing new if the row before it has the same values and has not ended.
        last = F.lag(F.struct(column(_BOUND).alias("end"), self._compared().alias("now")))
        last = last.over(in_time)
        goes_on = last["end"].isNull() | (last["end"] > column(begin))
        repeats = last.isNotNull() & goes_on & last["now"].eqNullSafe(self._compared())
        points = points.withColumn(_SAME, is_added & repeats).where(~column(_SAME))
        until = F.least(column(_BOUND), F.lead(column(begin)).over(in_time))
        changed = F.max(column(_KIND)).over(by_key) > _STORED
        rows = points.withColumn(_SAME, changed).withColumn(end, until).where(column(_SAME))
        return rows.select(*map(column, self.master.schema.names))

    def _points(self, begin: str, end: str) -> DataFrame:
        """Stored rows and tuples of all keys of the batch, each once, by when they begin."""
        joined, ours, witness = self._beside(self.tuples, [*self.values, begin, end])
        kinds = {field.name: field.dataType for field in joined.schema.fields}
        key = [ours[name].alias(name) for name in self.master.key]
        stored = F.struct(
            *key,
            *(column(name) for name in (*self.values, begin, end)),
            F.lit(None).cast(self.tuples.schema[self.at].dataType).alias(_RANK),
            F.lit(_STORED).alias(_KIND),
        )
        added = F.struct(
            *key,
            *(ours[name].cast(kinds[name]).alias(name) for name in self.values),
            ours[self.at].cast(kinds[begin]).alias(begin),
            F.lit(None).cast(kinds[end]).alias(end),
            ours[self.at].alias(_RANK),
            F.lit(_ADDED).alias(_KIND),
        )
        # In one go, so that a key whose tuple is here never lacks its stored rows.
        both = F.when(witness.isNull(), F.array(added)).otherwise(F.array(stored, added))
        points = joined.select(F.explode(both).alias(_SAME)).select(f"{_SAME}.*")
        alike = Window.partitionBy(*self._key(), column(_KIND), column(begin), column(end))
        first = F.row_number().over(alike.orderBy(column(_RANK).desc(), *self._ties()))
        return points.withColumn(_RANK, first).where(f"{_RANK} = 1")

    def _merged(self, points: DataFrame, begin: str, end: str) -> DataFrame:
        """A tuple that begins when a stored row does takes its place, or says nothing new."""
        together = Window.partitionBy(*self._key(), column(begin))
        now, is_added = self._compared(), column(_KIND) == _ADDED
        stored = F.struct(column(end).alias("end"), now.alias("now"))
        there = F.first(F.when(~is_added, stored), True).over(together)
        new = F.first(F.when(is_added, now), True).over(together)
        both = there.isNotNull() & new.isNotNull()
        same = there["now"].eqNullSafe(new)
        takes_over = is_added & both
        merged = points.select(
            *(column(name) for name in points.columns if name not in (end, _KIND)),
            F.when(takes_over, there["end"]).otherwise(column(end)).alias(end),
            F.when(takes_over, _REPLACED).otherwise(column(_KIND)).alias(_KIND),
            (both & (is_added == same)).alias(_SAME),
        )
        return merged.where(~column(_SAME))

    def _beside(
        self, tuples: DataFrame, columns: list[str]
    ) -> tuple[DataFrame, dict[str, Column], Column]:
        return beside(tuples, self.master, list(self.master.key), columns, memory=self.memory)

    def _key(self) -> list[Column]:
        return [column(name) for name in self.master.key]

    def _compared(self) -> Column:
        """What counts as a change, as one value."""
        return F.struct(*map(column, self.compare))

    def _ties(self) -> list[Column]:
        """The order of tuples of the same key and time: any, but the same each time."""
        hashed = [name for name in self.values if name not in self.compare and self._can_hash(name)]
        others = [F.xxhash64(*map(column, hashed))] if hashed else []
        return [F.xxhash64(*map(column, self.compare)), *others]

    def _can_hash(self, name: str) -> bool:
        """Whether Spark has a hash of this column: it has none of a map."""
        return "map<" not in self.tuples.schema[name].dataType.simpleString()


def _check_types(stream: StructType, master: StructType, pairs: Sequence[tuple[str, str]]) -> None:
    """Raise unless each column of the master can hold all that its column of the batch may have."""
    for ours, theirs in pairs:
        kind = stream[ours].dataType
        if theirs not in master.names or not holds(master[theirs].dataType, kind):
            known = "of a type that Spark does not have"
            if theirs in master.names:
                known = master[theirs].dataType.simpleString()
            raise OptionError(
                f"Column {ours!r} is {kind.simpleString()}, and the master's {theirs!r} is "
                f"{known}, which cannot hold all its values. Cast {ours!r} to that type first, or "
                "build the master anew."
            )


def _check_one_row_each(master: MasterTable, table: pa.Table) -> None:
    """Raise if the master has several rows of a key that is to have one."""
    key = key_with_several_rows(master, table)
    if key is not None:
        raise OptionError(
            f"{master.path} has several rows of the key {key}, and without valid=… the batch's row "
            'would replace them all. If they are its history, give valid=("valid_from", '
            '"valid_to"); if not, keep one row of each key.'
        )
