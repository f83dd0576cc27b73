"""Totals of a whole stream, estimated from the join of a sample.

Each stream tuple is in the sample with probability p, whatever the others. The sum of a column over
all result rows of the sampled tuples, divided by p, is then an unbiased estimate of the sum over
all tuples. Its variance is estimated without bias by (1 − p) / p² × Σ y², where y is the sum over
the result rows of one tuple (Horvitz and Thompson 1952). A tuple may have several result rows, and
equal tuples are chosen together, so y is taken over all rows that agree in the columns that
decided: a *cluster*. A mean is the ratio of two such totals; its bias vanishes with the size of
the sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from semistream.errors import OptionError
from semistream.sampling import Sample

__all__ = ["Estimate", "Estimates", "estimate"]

_MOMENTS: Final = {
    "n": "n",
    "nn": "n * n",
    "m": "m",
    "mm": "m * m",
    "y": "y",
    "yy": "y * y",
    "my": "m * y",
}
"""Sums over clusters: n result rows, m of them with a value, y the sum of these."""

_Moments = Mapping[str, float]
_Group = tuple[Any, ...]


class SparkRows(Protocol):
    """A batch DataFrame of Spark, classic or Connect."""

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""

    def selectExpr(self, *expr: str) -> Any:  # noqa: N802 (Spark's name)
        """Columns computed by SQL."""


ArrowRows: TypeAlias = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class Estimate:
    """A number that was estimated, and the interval that holds the true one."""

    value: float
    low: float
    high: float
    standard_error: float


@dataclass(frozen=True)
class Estimates:
    """What the join of all tuples would give, estimated from that of a sample."""

    count: Estimate
    """Result rows."""
    sum: Estimate | None = None
    """Of the column; nulls count as nothing."""
    mean: Estimate | None = None
    """Of the column's values that are not null; None if there are none."""


def estimate(
    rows: ArrowRows | SparkRows,
    sample: float | Sample,
    *,
    column: str | None = None,
    by: Sequence[str] | None = None,
    group_by: str | Sequence[str] | None = None,
    confidence: float = 0.95,
) -> Estimates | dict[Any, Estimates]:
    """What the join of all tuples would give, estimated from that of a sample.

    Args:
        rows: the result of a join with `sample=`: Arrow data, or a batch DataFrame, of which Spark
            makes the sums.
        sample: the sample that the join was given.
        column: the column to add up; without one only rows are counted.
        by: the columns that decided which tuples are in the sample: all of the stream's, unless
            the sample names others.
        group_by: one or several columns to group by; the result is then a dict by their values,
            or by tuples of them. A group without a row in the sample is not in it.
        confidence: how often the interval is to hold the true number.
    """
    if not 0 < confidence < 1:
        raise OptionError(f"confidence={confidence!r} must be between 0 and 1, such as 0.95.")
    chosen = Sample.of(sample)
    groups = [group_by] if isinstance(group_by, str) else list(group_by or ())
    deciding = _deciding(chosen, by)
    asked = [*deciding, *groups, *([] if column is None else [column])]
    if getattr(rows, "isStreaming", False):
        raise OptionError(
            "rows is a stream, which has no totals. Estimate each batch, in foreachBatch, or what "
            "the stream has written."
        )
    frame: Any = rows if hasattr(rows, "selectExpr") else _table(rows, asked)
    is_arrow = isinstance(frame, pa.Table)
    names = list(frame.column_names if is_arrow else frame.columns)
    missing = [name for name in (*deciding, *groups, column) if name not in (*names, None)]
    if missing:
        raise OptionError(f"The result has no column {missing}; it has {names}.")
    if is_arrow and column is not None and not _is_number(frame.schema.field(column).type):
        raise OptionError(
            f"The column {column!r} has the type {frame.schema.field(column).type}, which cannot "
            "be added up. Name a column of numbers."
        )
    moments = _arrow_moments if is_arrow else _spark_moments
    found = {
        group: _estimates(sums, chosen.share, confidence, column is not None)
        for group, sums in moments(frame, column, deciding, groups)
    }
    if not groups:
        return found[()]
    return {group[0] if isinstance(group_by, str) else group: e for group, e in found.items()}


def _table(rows: ArrowRows, asked: Sequence[str]) -> pa.Table:
    """The rows; a join that had no tuple gives no batch, and so no row with the columns asked."""
    given: object = rows
    is_arrow = isinstance(given, pa.Table | pa.RecordBatch)
    if not is_arrow and (hasattr(given, "columns") or not isinstance(given, Iterable)):
        raise OptionError(
            f"rows is a {type(given).__name__}; give the result of a join: Arrow data or a Spark "
            "DataFrame."
        )
    if isinstance(rows, pa.Table):
        return rows
    batches = [rows] if isinstance(rows, pa.RecordBatch) else list(rows)
    if not batches:
        return pa.table({name: pa.nulls(0) for name in asked})
    return pa.Table.from_batches(batches)


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    of_numbers = (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    return any(test(kind) for test in of_numbers)


def _deciding(sample: Sample, by: Sequence[str] | None) -> list[str]:
    """The columns that decided about the sample."""
    chosen = sample.by if by is None else by
    if chosen is None or isinstance(chosen, str):
        raise OptionError(
            "by=[…] must name the columns that decided which tuples are in the sample: all columns "
            "of the stream, unless the sample was made with ss.Sample(…, by=[…])."
        )
    return list(chosen)


def _arrow_moments(
    table: Any, column: str | None, by: Sequence[str], group_by: Sequence[str]
) -> Iterator[tuple[_Group, _Moments]]:
    """The sums of each group, from Arrow data."""
    keys = [*dict.fromkeys([*group_by, *by])]
    value = table[column].cast(pa.float64()) if column else pa.nulls(table.num_rows, pa.float64())
    known = pa.table([*(table[name] for name in keys), value], [*map(str, range(len(keys))), "v"])
    clusters = known.group_by(known.column_names[:-1], use_threads=False).aggregate(
        [([], "count_all"), ("v", "count"), ("v", "sum")]
    )
    groups = [clusters[str(keys.index(name))].to_pylist() for name in group_by]
    numbers = [clusters[name].to_pylist() for name in ("count_all", "v_count", "v_sum")]
    found: dict[_Group, dict[str, float]] = {}
    for *group, n, m, sum_or_none in zip(*groups, *numbers, strict=True):
        sums = found.setdefault(tuple(group), dict.fromkeys(_MOMENTS, 0.0))
        y = sum_or_none or 0.0
        for name, product in zip(_MOMENTS, (n, n * n, m, m * m, y, y * y, m * y), strict=True):
            sums[name] += product
    if not group_by and not found:
        found[()] = dict.fromkeys(_MOMENTS, 0.0)
    yield from found.items()


def _spark_moments(
    df: Any, column: str | None, by: Sequence[str], group_by: Sequence[str]
) -> Iterator[tuple[_Group, _Moments]]:
    """The same, made by Spark: a row per group comes to the driver."""
    keys = [*dict.fromkeys([*group_by, *by])]
    value = f"CAST({_quoted(column)} AS DOUBLE)" if column else "CAST(NULL AS DOUBLE)"
    columns = [f"{_quoted(name)} AS k{i}" for i, name in enumerate(keys)]
    numbers = {"n": "1D", "m": f"IF({value} IS NULL, 0D, 1D)", "y": f"coalesce({value}, 0D)"}
    named = [f"{text} AS {name}" for name, text in numbers.items()]
    places = [f"k{i}" for i in range(len(keys))]
    clusters = _sums(df.selectExpr(*columns, *named), places, numbers)
    groups = places[: len(group_by)]
    products = [f"{text} AS {name}" for name, text in _MOMENTS.items()]
    for row in _sums(clusters.selectExpr(*groups, *products), groups, _MOMENTS).collect():
        yield tuple(row[name] for name in groups), {name: row[name] or 0.0 for name in _MOMENTS}


def _sums(frame: Any, groups: Sequence[str], names: Iterable[str]) -> Any:
    """The sums of the named columns by group, under the same names."""
    summed = frame.groupBy(*groups).agg(dict.fromkeys(names, "sum"))
    return summed.selectExpr(*groups, *(f"`sum({name})` AS {name}" for name in names))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _estimates(moments: _Moments, share: float, confidence: float, with_sum: bool) -> Estimates:
    """From the sums over clusters to estimates."""
    width = NormalDist().inv_cdf(0.5 + confidence / 2)
    spread = (1 - share) / share**2

    def interval(value: float, variance: float) -> Estimate:
        error = sqrt(max(0.0, variance))
        return Estimate(value, value - width * error, value + width * error, error)

    n, nn, m, mm, y, yy, my = (moments[name] for name in _MOMENTS)
    count = interval(n / share, spread * nn)
    if not with_sum:
        return Estimates(count)
    mean = None
    if m:
        ratio = y / m
        squares = yy - 2 * ratio * my + ratio**2 * mm
        mean = interval(ratio, (1 - share) * squares / m**2)
    return Estimates(count, interval(y / share, spread * yy), mean)
