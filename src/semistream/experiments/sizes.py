"""Sizes of a run: those of the paper's budget, shrunk with R where the run is smaller.

The plan is made for the paper's R and memory. Partitions keep their rows, waiting tuples and the
front stage shrink by the factor. The budget that the engine then gets is only large enough to
hold these sizes: frames and staging do not shrink.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from semistream.algorithms import Engine, fixed_engine
from semistream.experiments.setting import Setting
from semistream.experiments.sources import master_of, rows_per_page_of, tuples_of
from semistream.metrics import Clock
from semistream.plan import JoinPlan
from semistream.relation import MasterTable

__all__ = ["sized_engine"]

_SAMPLE: Final = 64
_ROOM: Final = 4 << 20
_SLOT: Final = 64
"""Bytes of a waiting tuple beyond its own columns, generously."""
_FRAMES: Final = 4
Options = dict[str, Any]


def sized_engine(
    setting: Setting, master: MasterTable, clock: Clock, io: str = "buffered"
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
    """What the setting fixes, in the engine's words."""
    name = setting.algorithm
    options: Options = {}
    per_page = rows_per_page_of(setting)
    pages = max(1, round(setting.partition_rows / per_page))
    if setting.partition_rows and "inlj" not in name:
        options["partition_pages"] = pages
    if name in ("hybridjoin", "chybridjoin"):
        options["look_ups"] = 0
    if setting.pinned_rows and "xhybrid" in name:
        pinned = setting.pinned_rows * setting.factor / per_page / pages
        options["pinned_partitions"] = max(1, round(pinned))
    if name in ("cinlj", "cmeshjoin", "chybridjoin"):
        options["front_percent"] = setting.front_percent
        if setting.threshold:
            options["threshold"] = setting.threshold
    return options


def _paper_plan(setting: Setting, options: Options) -> JoinPlan:
    # Pages of another size would change nothing but the time that it takes to count them.
    whole = master_of(replace(setting, factor=1.0), setting.page_bytes)
    if "pinned_partitions" in options:
        paper = _options(replace(setting, factor=1.0))["pinned_partitions"]
        options = {**options, "pinned_partitions": paper}
    sample = tuples_of(setting).batch(_SAMPLE)
    there = fixed_engine(
        whole, algorithm=setting.algorithm, on="key", memory=setting.memory, **options
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
    options = {**options, "partition_pages": plan.partition_pages}
    if plan.stream_slots:
        partitions = -(-master.page_count // plan.partition_pages)
        options["stream_slots"] = max(round(plan.stream_slots * setting.factor), 2 * partitions)
    if "inlj" in setting.algorithm:
        options.pop("partition_pages")
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
