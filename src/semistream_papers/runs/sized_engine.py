"""The engine of a run, with the sizes that the paper's budget gives, shrunk with R.

The plan is made for the paper's R and memory. Then waiting tuples and the front stage shrink by
the setting's factor, and partitions keep their rows. The engine gets a budget that holds the
shrunk sizes. It is more than the factor's share of the memory, since frames and staging do not
shrink.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from semistream.algorithms import Engine, fixed_engine
from semistream.metrics import Clock
from semistream.plan import JoinPlan
from semistream.relation import MasterTable
from semistream_papers.runs.inputs import master_of, rows_per_page_of, tuples_of
from semistream_papers.runs.setting import Setting

__all__ = ["sized_engine"]

_SAMPLE: Final = 64
_ROOM: Final = 4 << 20
_SLOT: Final = 64
"""Bytes of a waiting tuple beyond its own columns; more than it takes."""
_FRAMES: Final = 4
Options = dict[str, Any]


def sized_engine(
    setting: Setting, master: MasterTable, clock: Clock, io: str = "unmapped"
) -> Engine:
    """An engine for the setting, with the sizes that the paper's budget gives."""
    options = _options(setting)
    if setting.factor == 1.0 and not setting.stream_slots:
        return fixed_engine(
            master,
            algorithm=setting.algorithm,
            on="key",
            memory=setting.memory,
            clock=clock,
            io=io,
            **options,
        )
    plan = _paper_plan(setting, options)
    if setting.stream_slots:
        plan = replace(plan, stream_slots=setting.stream_slots)
    return _shrunk(setting, plan, master, options, clock, io)


def _options(setting: Setting) -> Options:
    """The engine's options for what the setting fixes, as far as the algorithm has them."""
    known = setting.needs.options
    options: Options = {}
    per_page = rows_per_page_of(setting)
    pages = max(1, round(setting.partition_rows / per_page))
    if setting.partition_rows and "partition_pages" in known:
        options["partition_pages"] = pages
    if "look_ups" in known:
        # The papers look one tuple up at a time.
        options["look_ups"] = 0
    if setting.pinned_rows and "pinned_partitions" in known:
        pinned = setting.pinned_rows * setting.factor / per_page / pages
        options["pinned_partitions"] = max(1, round(pinned))
    if "front_percent" in known:
        options["front_percent"] = setting.front_percent
        if setting.threshold:
            options["threshold"] = setting.threshold
    return options


def _paper_plan(setting: Setting, options: Options) -> JoinPlan:
    # With the small pages of look-ups the index of a large R would only take longer to make.
    whole = master_of(replace(setting, factor=1.0), setting.page_bytes)
    if "pinned_partitions" in options:
        paper = _options(replace(setting, factor=1.0))["pinned_partitions"]
        options = {**options, "pinned_partitions": paper}
    sample = tuples_of(setting).batch(_SAMPLE)
    there = fixed_engine(
        whole,
        algorithm=setting.algorithm,
        on="key",
        memory=setting.memory,
        io="unmapped",
        **options,
    )
    return there.planned(sample)


def _shrunk(
    setting: Setting,
    plan: JoinPlan,
    master: MasterTable,
    options: Options,
    clock: Clock,
    io: str,
) -> Engine:
    """The engine with a budget that holds the plan's sizes, shrunk."""
    options = dict(options)
    if "partition_pages" in setting.needs.options:
        options["partition_pages"] = plan.partition_pages
    if plan.stream_slots:
        partitions = -(-master.page_count // plan.partition_pages)
        options["stream_slots"] = max(round(plan.stream_slots * setting.factor), 2 * partitions)
    need = (
        _ROOM
        + options.get("stream_slots", 0) * (_SLOT + 2 * setting.tuple_bytes)
        + _FRAMES * _partition_bytes(plan, setting)
    )
    memory = max(need, int(setting.memory * setting.factor))
    if plan.front_rows and plan.admission != "pinned":
        options.pop("front_percent")
        options["front_rows"] = max(1, round(plan.front_rows * setting.factor))
        memory += options["front_rows"] * (_SLOT + 2 * setting.row_bytes)
    return fixed_engine(
        master, algorithm=setting.algorithm, on="key", memory=memory, clock=clock, io=io, **options
    )


def _partition_bytes(plan: JoinPlan, setting: Setting) -> int:
    """Bytes of the partitions that are in memory, the pinned ones included."""
    return plan.partition_pages * setting.page_bytes * (1 + plan.pinned_partitions)
