"""The facade: what a user calls, wired from the layers below.

Nothing below imports upwards. An engine is handed the planner of the cost model here, and
`MasterTable.build` the builder on Spark, which is imported when it is first used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semistream.algorithms.engine import Engine, fixed_engine
from semistream.algorithms.options import check_engine
from semistream.algorithms.planner import Planner, Sizer
from semistream.algorithms.registry import AUTO
from semistream.budget import parse_memory
from semistream.cost.auto import AutoPlanner
from semistream.cost.retuning import Retuning, RetuningPlanner
from semistream.errors import OptionError
from semistream.matching.engine import MatchingEngine
from semistream.matching.terms import Terms
from semistream.metrics import Clock
from semistream.parts.join_shape import On
from semistream.relation import MasterTable
from semistream.relation.master_table import SparkBuilder
from semistream.sampling import Sample
from semistream.scanning.conditions import Condition
from semistream.scanning.engine import scan_engine

__all__ = ["engine"]


def engine(
    master: MasterTable,
    *,
    on: On | Condition,
    memory: int | str,
    how: str = "inner",
    algorithm: str = AUTO,
    columns: Sequence[str] | None = None,
    where: Any = None,
    valid: Sequence[str] | None = None,
    as_of: Sequence[str] | None = None,
    tolerance: Any = None,
    preserve_order: bool = False,
    io: str = "buffered",
    retune: bool | Retuning = False,
    use_filter: bool | None = None,
    sample: float | Sample | None = None,
    clock: Clock = time.perf_counter,
    **options: int | str,
) -> Engine:
    """The join operator without Spark.

    Args:
        master: the master table, or a shard of one.
        on: the stream's key columns: a name, a list, or a dict from stream column to master key
            column. Or a condition, such as `between("ip", "low", "high")`.
        memory: the budget for everything, as bytes or "64MB".
        how: "inner"; "left" to keep stream tuples that are unmatched, with nulls; "semi" for the
            stream tuples that have a master row, each once, "anti" for those that have none, both
            without columns of the master.
        algorithm: one of `ALGORITHMS`, or "auto": then the cost model chooses it and its sizes
            when the first batch shows the stream, and `Engine.plan` says why.
        columns: the master's columns to add, by default all but its key.
        where: a condition on stream tuple and master row beside equal keys: SQL over the columns
            of both sides, or a `pyarrow.compute` expression. A tuple is matched only if a row
            passes.
        valid: the stream's time column, and the master's two columns from when to when (not
            included; null for open) a row is valid: a tuple has the row that is valid at its time.
        as_of: the stream's time column, and the master's from when on a row counts: a tuple has
            the latest row that is not after it.
        tolerance: how much older the row of `as_of` may be: a timedelta, "10m", or a number.
        preserve_order: whether results come in the order of the stream.
        io: "buffered" to search pages that the operating system holds where they lie, and to read
            the others through its cache; "unmapped" to copy all of them, for filesystems on which
            mapping files into memory is not safe; "direct" to bypass the cache of a local disk.
        retune: whether to choose again when the stream has changed; `Retuning` says when, and for
            which arrival rate.
        use_filter: the master's membership filter, if it has one, is used when it fits the
            budget; True insists on it, False goes without.
        sample: the share of the stream's tuples to join, above 0 and at most 1, or a `Sample`; the
            others are left out and counted. `estimate` tells totals of the whole from the result.
        clock: seconds, from any origin; by default real time.
        options: sizes and rules that are fixed. `partition_pages`, `stream_slots`,
            `chunk_tuples` (MESHJOIN's w), `pinned_partitions` (the X-HYBRIDJOINs) and `look_ups`
            (partitions that HYBRIDJOIN reads at a time; 0 for one, decoded as a whole).
            `admission` is the front stage's rule, one of "paper", "balance" and "tinylfu";
            `front_percent` is how much of the memory it may have, or `front_rows` how many rows;
            `threshold` holds the paper's threshold where it is.
    """
    if not isinstance(retune, bool | Retuning):
        raise OptionError(f"retune={retune!r} must be True, False or a Retuning.")
    if retune and getattr(master, "is_live", False):
        raise OptionError(
            f"retune={retune!r} is not for {master.path}: plans are chosen by what reads of files "
            "cost, and this master is in a database. Leave it out."
        )
    terms = Terms.of(how, where, valid, as_of, tolerance, preserve_order)

    def made(
        algorithm: str, on: On, columns: Sequence[str] | None, memory: int | str, how: str = "inner"
    ) -> Engine:
        return _pair_engine(
            master, on, memory, how, algorithm, columns, io, retune, use_filter, clock, options
        )

    joining: Engine
    if isinstance(on, Condition):
        terms.refuse_all_but_how(on)
        joining = scan_engine(
            master,
            on=on,
            memory=memory,
            how=how,
            algorithm=algorithm,
            columns=columns,
            io=io,
            clock=clock,
            retune=retune,
            use_filter=use_filter,
            **options,
        )
    elif terms.is_plain:
        joining = made(algorithm, on, columns, memory, how)
    else:
        check_engine(master, on, "inner", algorithm, io, use_filter, options)
        joining = MatchingEngine(
            master,
            terms,
            made,
            algorithm=algorithm,
            on=on,
            memory=parse_memory(memory),
            columns=columns,
            clock=clock,
        )
    if sample is not None:
        joining.use_sample(Sample.of(sample))
    return joining


def _pair_engine(
    master: MasterTable,
    on: On,
    memory: int | str,
    how: str,
    algorithm: str,
    columns: Sequence[str] | None,
    io: str,
    retune: bool | Retuning,
    use_filter: bool | None,
    clock: Clock,
    options: Mapping[str, int | str],
) -> Engine:
    """An engine of the papers, for equal keys and nothing else."""
    if algorithm != AUTO and not retune:
        return fixed_engine(
            master,
            on=on,
            memory=memory,
            how=how,
            algorithm=algorithm,
            columns=columns,
            io=io,
            use_filter=use_filter,
            clock=clock,
            **options,
        )
    check_engine(master, on, how, algorithm, io, use_filter, options)
    size, sizer = parse_memory(memory), Sizer(master, io, use_filter)
    planner: Planner
    retuner: RetuningPlanner | None = None
    if retune:
        retuning = retune if isinstance(retune, Retuning) else Retuning()
        planner = retuner = RetuningPlanner(
            master, io, algorithm, options, sizer, clock, size, retuning
        )
    else:
        planner = AutoPlanner(master, io, options, sizer)
    return Engine(
        master,
        planner,
        on=on,
        memory=size,
        how=how,
        columns=columns,
        io=io,
        clock=clock,
        retuner=retuner,
    )


def _spark_builder() -> SparkBuilder:
    """What builds master tables on Spark; importing it brings PySpark, so only when asked for."""
    from semistream.spark.building.job import build

    return build


def _spark_follower() -> Callable[..., Any]:
    """What brings master tables up to date on Spark."""
    from semistream.spark.sync.sync import sync

    return sync


MasterTable.use_builder(_spark_builder)
MasterTable.use_follower(_spark_follower)
