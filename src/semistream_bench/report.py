"""What `semistream bench` shows: a table with bars, JSON lines, and a chart."""

from __future__ import annotations

import json
import os
import platform
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from semistream_bench.measure import Measured
from semistream_bench.ways import OURS, PACKED, WAYS

__all__ = ["draw", "legend", "machine", "memory_told", "sentence", "table", "write_lines"]

_PACKAGES = ("semistream", "pyspark", "pyarrow", "numpy", "numba", "lmdb", "rocksdict", "duckdb")
_WIDTH, _BAR, _LEAST_BAR = 84, 24, 8
"""Characters of a line without bars, and of the longest and the shortest of the longest bars."""


def table(found: Sequence[Measured], where: str, width: int) -> Table:
    """The ways, fastest first; with bars, if so many columns of the screen have room for them."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("way", no_wrap=True)
    for name in (
        "thousand\ntuples/s",
        f"ms a\n{'batch' if where == 'warm' else 'task'}",
        "ours ×\nas fast",
    ):
        shown.add_column(name, justify="right")
    shown.add_column("by round", justify="right", style="dim", no_wrap=True)
    if any(one.resident for one in found):
        shown.add_column("workers\nMB", justify="right")
        shown.add_column("heap\nMB", justify="right")
    room = min(width - _WIDTH, _BAR)
    if room >= _LEAST_BAR:
        shown.add_column("", no_wrap=True)
    most = max((one.rate for one in found), default=0.0) or 1.0
    for one in sorted(found, key=lambda one: -one.rate):
        bar = "█" * max(1, round(one.rate / most * room)) if one.seconds else ""
        cells = [*_cells(one, found), bar]
        shown.add_row(*cells[: len(shown.columns)], style=_style(one))
    return shown


def legend(found: Sequence[Measured]) -> str:
    """What the table's short heads mean."""
    told = "By round: the lowest and the highest when each round stands alone."
    if any(one.resident for one in found):
        told += " Workers, heap: what Python's workers hold, and the most of Java's heap."
    return told


def _cells(one: Measured, found: Sequence[Measured]) -> list[str]:
    held = [""] * 2 * any(m.resident for m in found)
    if one.failed:
        return [one.way, "failed", "", "", "", *held]
    low, high = one.ratios
    cells = [one.way, _thousands(one), f"{one.tuples / one.rate * 1e3:,.0f}"]
    cells += ["", ""] if one.way == OURS else [f"{one.ratio:.2f}", f"{low:.2f}–{high:.2f}"]
    if one.resident:
        held = [f"{one.resident.workers / 1e6:,.0f}", f"{one.resident.heap / 1e6:,.0f}"]
    return [*cells, *held]


def _thousands(one: Measured) -> str:
    """Thousand tuples a second."""
    rate = one.rate / 1e3
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:,.3g}"


def _style(one: Measured) -> str:
    if one.way in (OURS, PACKED):
        return "bold"
    return "dim" if _is_limit(one) else ""


def _is_limit(one: Measured) -> bool:
    return WAYS.get(one.way, "").startswith("limit")


def memory_told(found: Iterable[Measured]) -> str:
    """What each task may take in memory, if it is not the same for all ways."""
    allowed = {one.way: one.allowed for one in found if one.seconds and one.allowed}
    more = [way for way, size in allowed.items() if size > allowed.get(OURS, size)]
    if not more:
        return ""
    told = ", ".join(f"{way} {allowed[way] / 1e6:,.0f} MB" for way in more)
    ours = allowed[OURS] / 1e6
    return f"A task may take {ours:,.1f} MB, but {told}: it fails with less."


def sentence(found: Iterable[Measured], where: str) -> str:
    """The comparison in words: what is fastest, whoever it is."""
    rivals = [m for m in found if m.seconds and not _is_limit(m)]
    rivals.sort(key=lambda m: -m.rate)
    ours = [m for m in rivals if m.way in (OURS, PACKED)]
    others = [m for m in rivals if m.way not in (OURS, PACKED)]
    if not others or not ours:
        return ""
    best, mine = others[0], ours[0].way
    ratio = ours[0].rate / best.rate
    if ratio >= 1.05:
        return f"{where}: {mine} is the fastest; {best.way} comes next, {ratio:.1f} times as slow."
    if ratio > 0.95:
        return f"{where}: {mine} and {best.way} are about as fast as each other."
    return f"{where}: {best.way} is the fastest, {1 / ratio:.1f} times as fast as {mine}."


def machine() -> dict[str, Any]:
    """The machine and the versions that a figure depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    found: dict[str, Any] = {"cpu": next(named, platform.processor()), "cores": os.cpu_count()}
    found["python"] = platform.python_version()
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_lines(path: Path, found: Iterable[Measured], settings: Mapping[str, Any]) -> None:
    """Append a JSON line for each measurement."""
    at, here = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), machine()
    with path.open("a", encoding="utf-8") as file:
        for one in found:
            line = asdict(one) | {"rate": one.rate, "settings": dict(settings)}
            held = one.resident
            line["resident"] = None if held is None else held._asdict()
            file.write(json.dumps(line | {"machine": here, "at": at}) + "\n")


def _colour(one: Measured) -> str:
    if one.way in (OURS, PACKED):
        return "#2f6f9f"
    return "#e3e6ea" if _is_limit(one) else "#a9b1bb"


def draw(path: Path, found: Sequence[Measured], title: str) -> None:
    """A chart with a bar for each way, as an SVG or PNG file."""
    import matplotlib.pyplot as plt

    shown = sorted((one for one in found if one.seconds), key=lambda one: one.rate)
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(shown) + 1.2), layout="constrained")
    names = [f"{one.way} (limit)" if _is_limit(one) else one.way for one in shown]
    bars = axes.barh(names, [one.rate / 1e3 for one in shown], color=[*map(_colour, shown)])
    axes.bar_label(bars, [*map(_thousands, shown)], padding=4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("thousand tuples a second")
    axes.margins(x=0.12)
    figure.suptitle(textwrap.fill(title, 80), fontsize="medium")
    figure.savefig(path)
    plt.close(figure)
