"""Quantities: what a figure draws of a run's result, one number or lines over time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from semistream.cost.zipf_sums import zipf_share
from semistream_papers.figures.drawings import Lines
from semistream_papers.runs.inputs import rows_per_page_of
from semistream_papers.runs.runner import Result
from semistream_papers.runs.setting import Setting

__all__ = ["partition_rows_of", "pinned_rows_of", "quantity", "timelines"]

_ITERATIONS: Final = 4_000


def quantity(name: str, setting: Setting, result: Result) -> float:
    """The number that a figure draws of a result: derived, or as the result has it."""
    derived = _DERIVED.get(name)
    return derived(setting, result) if derived else float(result[name])


def timelines(name: str, result: Result) -> Lines:
    """The lines that a figure draws of a result's course over time, by label."""
    if name == "timeline:front":
        first = result["timeline"][0]
        return {
            label: [
                (at["iterations"] - first["iterations"], (at[name] - first[name]) / 1e3)
                for at in result["timeline"]
            ]
            for label, name in (("through the front stage", "front_hits"), ("all", "finished"))
        }
    before = _rates(result["before"]["timeline"])
    end = before[-1][0]
    after = [(end + at, rate) for at, rate in _rates(result["timeline"])]
    return {"before": before, "after R has doubled": after}


def partition_rows_of(setting: Setting, result: Result) -> float:
    """Rows of a partition in the run."""
    pages = float(result["sizes"]["partition_pages"])
    return pages * rows_per_page_of(setting)


def pinned_rows_of(setting: Setting, result: Result) -> float:
    """Rows that are pinned in the run."""
    return float(result["sizes"]["pinned_partitions"]) * partition_rows_of(setting, result)


def _rates(timeline: list[dict[str, float]]) -> list[tuple[float, float]]:
    pairs = [(a, b) for a, b in pairwise(timeline) if b["seconds"] > a["seconds"]]
    return [
        (b["seconds"], (b["finished"] - a["finished"]) / (b["seconds"] - a["seconds"]))
        for a, b in pairs
    ]


def _pinned(setting: Setting, result: Result) -> float:
    """Millions of tuples that the pinned rows finish in 4,000 iterations."""
    share = zipf_share(pinned_rows_of(setting, result), setting.run_rows, setting.exponent)
    return share * float(result["per_loop"]) * _ITERATIONS / 1e6


def _chunk_wait(setting: Setting, result: Result) -> float:
    """The paper's waiting time of MESHJOIN: until w tuples have arrived."""
    return float(result["sizes"]["chunk_tuples"]) / setting.arrival_rate


_DERIVED: Final[dict[str, Callable[[Setting, Result], float]]] = {
    "tuple_seconds": lambda _, result: 1 / float(result["rate"]),
    "front_rate": lambda _, result: float(result["rate"]) * float(result["hit_share"]),
    "disk_rate": lambda _, result: float(result["rate"]) * (1 - float(result["hit_share"])),
    "pinned_million": _pinned,
    "chunk_wait": _chunk_wait,
}
