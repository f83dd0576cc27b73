"""Making an engine: what a user asks for is checked before anything is opened."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib import import_module

from semistream.algorithms.engine import Chooser, Engine
from semistream.algorithms.registry import AUTO, BY_NAME, needs_of
from semistream.algorithms.sizing import Needs
from semistream.budget import parse_memory
from semistream.errors import OptionError
from semistream.metrics import Clock
from semistream.parts.admission import ADMISSIONS
from semistream.parts.join_shape import On, resolve_on
from semistream.relation import IO_MODES, MasterTable


def engine(
    master: MasterTable,
    *,
    on: On,
    memory: int | str,
    how: str = "inner",
    algorithm: str = AUTO,
    columns: Sequence[str] | None = None,
    io: str = "buffered",
    clock: Clock = time.perf_counter,
    use_filter: bool | None = None,
    **options: int | str,
) -> Engine:
    """The join operator without Spark.

    `algorithm` is one of `ALGORITHMS`, or "auto": then the cost model chooses it and its sizes
    when the first batch shows the stream, and `Engine.plan` says why. `on` names the stream's key
    columns (a name, a list, or a dict from stream column to master key column); `how` is "inner"
    or "left"; `memory` is the budget for everything, as bytes or "64MB"; `columns` chooses the
    master's columns. Sizes can be fixed with `partition_pages`, `stream_slots`, `chunk_tuples`
    (MESHJOIN's w), `pinned_partitions` (the X-HYBRIDJOINs) and `look_ups` (partitions that
    HYBRIDJOIN reads at a time; 0 for one, decoded as a whole); `admission` chooses the front
    stage's rule, one of "paper", "balance" and "tinylfu", `front_percent` how much of the memory
    it may have or `front_rows` how many rows, and `threshold` holds the paper's threshold where it
    is. The master's membership filter, if it has one, is used when it fits the budget;
    `use_filter` True insists on it, False goes without.
    """
    if not isinstance(master, MasterTable):
        raise OptionError(
            f"master is a {type(master).__name__}; it must be a MasterTable. Open one with "
            "ss.MasterTable.open(path), or build it with ss.MasterTable.from_arrow(…)."
        )
    if master.shard_count > 1 and not master.is_shard:
        raise OptionError(
            f"The master table at {master.path} has {master.shard_count} shards, and an engine "
            "reads one. Make an engine for each, with master.shard(i), or join on Spark with "
            "ss.join."
        )
    choose: Chooser | None = None
    if algorithm == AUTO:
        check_options(AUTO, options)
        # The cost model stands above this layer: it is looked up when asked for.
        choose = import_module("semistream.cost.auto").AutoChoice(master, io, options)
        algorithm = "chybridjoin"
    else:
        check_options(algorithm, options)
    check_join(how, io)
    resolve_on(on, master.key)
    chosen = BY_NAME[algorithm]
    _check_filter(use_filter, master)
    size = parse_memory(memory)
    return Engine(chosen, master, on, how, size, io, columns, clock, options, use_filter, choose)


def check_join(how: str, io: str) -> None:
    """Refuse a kind of join, or a way to read, that there is not."""
    if how not in ("inner", "left"):
        raise OptionError(f'how={how!r} is not known. Use "inner" or "left".')
    if io not in IO_MODES:
        raise OptionError(f"io={io!r} is not known. Use one of: {', '.join(IO_MODES)}.")


def check_options(algorithm: str, options: Mapping[str, int | str]) -> None:
    """Refuse options that an algorithm, or with "auto" every one of them, has no use for."""
    if algorithm == AUTO:
        _check_auto_options(options)
    else:
        _check_options(needs_of(algorithm), options)
    _check_front_stage(options)


def _check_filter(use_filter: bool | None, master: MasterTable) -> None:
    if use_filter not in (None, True, False):
        raise OptionError(f"use_filter={use_filter!r} must be True, False or None.")
    if use_filter and not master.filter_bytes:
        raise OptionError(
            f"use_filter=True, but the master table at {master.path} has no membership filter. "
            "Build it with MasterTable.from_arrow(…, filter_bits=10), or leave use_filter out."
        )


def _check_front_stage(options: Mapping[str, int | str]) -> None:
    """Options that contradict each other would be ignored in silence."""
    if "front_rows" in options and "front_percent" in options:
        raise OptionError(
            "front_rows and front_percent both say how large the front stage is. Give one of them."
        )
    if "threshold" in options and options.get("admission", "paper") != "paper":
        raise OptionError(
            f"threshold is for admission='paper'; admission={options['admission']!r} has none."
        )


def _check_auto_options(options: Mapping[str, int | str]) -> None:
    for name, value in options.items():
        users = [known.needs for known in BY_NAME.values() if name in known.needs.options]
        if not users:
            raise OptionError(f"No algorithm has an option {name!r}, so auto has no use for it.")
        _check_options(users[0], {name: value})


def _check_options(needs: Needs, options: Mapping[str, int | str]) -> None:
    for name, value in options.items():
        if name not in needs.options:
            known = ", ".join(needs.options) or "none"
            raise OptionError(
                f"{needs.algorithm} has no option {name!r}. Its options for sizes are: {known}."
            )
        if name == "admission":
            if value not in ADMISSIONS:
                raise OptionError(
                    f"admission={value!r} is not known. Use one of: {', '.join(ADMISSIONS)}."
                )
            continue
        least = 0 if name in ("pinned_partitions", "look_ups") else 1
        if type(value) is not int or value < least:
            raise OptionError(f"{name}={value!r} must be a whole number of at least {least}.")
        if name == "front_percent" and value > 90:
            raise OptionError(f"{name}={value!r} must be at most 90: tuples that miss must wait.")
