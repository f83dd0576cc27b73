"""What the committed results in benchmarks/results say, as numbers for charts and pages."""

from __future__ import annotations

import json
import statistics
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

__all__ = [
    "ALGORITHMS",
    "RESULTS",
    "bench",
    "by_memory",
    "by_skew",
    "lines",
    "measured_at",
    "newest",
    "object_store",
    "rates",
    "scale",
]

RESULTS: Final = Path(__file__).parents[2] / "benchmarks" / "results"
ALGORITHMS: Final = (
    *("inlj", "meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "oxhybridjoin"),
    *("cinlj", "cmeshjoin", "chybridjoin"),
)


@cache
def lines(name: str) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(line) for line in (RESULTS / name).read_text("utf-8").splitlines()]


def newest(measure: str) -> dict[str, Any]:
    """The last finding of the speed targets whose name begins so."""
    found = [line for line in lines("targets.jsonl") if line["measure"].startswith(measure)]
    if not found:
        raise LookupError(f"benchmarks/results/targets.jsonl has no measure {measure!r}")
    return max(found, key=lambda line: line["at"])


def rates(finding: dict[str, Any]) -> dict[str, float]:
    """Thousand tuples per second of each way that was run side by side, by the median."""
    return {
        way: finding["tuples"] / statistics.median(chain(*rounds)) / 1e3
        for way, rounds in finding["seconds"].items()
    }


def measured_at(finding: dict[str, Any]) -> str:
    """The day, and on what."""
    where = finding["machine"]
    return f"{finding['at'][:10]}, {where['cores']} cores, Spark {where['pyspark']}"


def by_skew(quantity: str, layout: str) -> dict[str, list[tuple[float, float]]]:
    """By algorithm: pages read per 1,000 tuples, or thousand tuples a second, for each exponent."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ALGORITHMS}
    for line in lines("cost_model.jsonl"):
        if line["columns"] == 10 and line["layout"] == layout and line["algorithm"] in found:
            value = (
                1e3 * line["operations"]["pages_read"]
                if quantity == "pages"
                else line["measured"] / 1e3
            )
            found[line["algorithm"]].append((line["exponent"], value))
    return {name: sorted(points) for name, points in found.items() if points}


def by_memory(rows: int, tuples: int) -> dict[str, list[tuple[float, float]]]:
    """By skew: thousand tuples per second of CPU for each budget in MB, in tasks of this length."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in lines("micro-batches-buffered.jsonl"):
        if (line["rows"], line["tuples"]) == (rows, tuples):
            points = found.setdefault(f"exponent {line['exponent']:g}", [])
            points.append((line["memory"] / 2**20, tuples / line["seconds"]["chosen"] / 1e3))
    return {name: sorted(points) for name, points in sorted(found.items())}


def bench(where: str) -> dict[tuple[int, float, int], list[dict[str, Any]]]:
    """What `semistream bench` found, "warm" or "cold", by rows, exponent and tuples: the newest."""
    found: dict[tuple[int, float, int], list[dict[str, Any]]] = {}
    for line in sorted(lines("bench.jsonl"), key=lambda line: str(line["at"])):
        at = line["settings"]["rows"], line["settings"]["exponent"], line["tuples"]
        if line["where"] == where:
            before = found.get(at, [])
            found[at] = [*(one for one in before if one["at"] == line["at"]), line]
    return dict(sorted(found.items()))


def scale(where: str, value: str) -> dict[str, list[tuple[float, float]]]:
    """By skew: a value of `benchmarks/scale.py` for each million rows of R."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in lines("scale.jsonl"):
        if line["where"] == where:
            name = f"exponent {line['exponent']:g}, {where}"
            found.setdefault(name, []).append((line["rows"] / 1e6, float(line[value])))
    return {name: sorted(points) for name, points in sorted(found.items())}


def object_store() -> dict[str, float]:
    """Thousand tuples per second with a master behind a slow network."""
    return {line["way"]: line["tuples_per_second"] / 1e3 for line in lines("object_store.jsonl")}
