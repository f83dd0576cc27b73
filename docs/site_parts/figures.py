"""Which charts there are, and which results each is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from semistream_papers.figures.catalogue import FIGURES
from semistream_papers.figures.reproduction import Reproduction
from site_parts.charts import Bars, Curves, Panel
from site_parts.results import (
    ALGORITHMS,
    RESULTS,
    bench,
    by_memory,
    by_skew,
    lines,
    newest,
    object_store,
    rates,
    scale,
)

__all__ = ["CHARTS", "PAPER_FIGURES"]

PAPER_FIGURES: Final = {
    "inlj": "meshjoin-6b",
    "meshjoin": "hybridjoin-7d",
    "rmeshjoin": "xhybridjoin-3a",
    "hybridjoin": "hybridjoin-7c",
    "xhybridjoin": "xhybridjoin-3c",
    "oxhybridjoin": "oxhybridjoin-6b",
    "cinlj": "skewed-5c",
    "cmeshjoin": "skewed-5a",
    "chybridjoin": "skewed-5d",
}
"""The figure of the papers that shows an algorithm best."""

_WAYS: Final = {
    "semistream": "semistream",
    "LMDB": "look-ups in LMDB",
    "RocksDB (30 MB)": "look-ups in RocksDB",
    "DuckDB (30 MB)": "look-ups in DuckDB",
    "DuckDB (1 GB, primary key)": "DuckDB with 1 GB",
    "stream-static": "Spark's own join",
    "wide identity": "no join: Spark's limit",
}


def comparison() -> list[Panel]:
    """Our join beside what else one could do on Spark."""
    found = rates(newest("Spark, R 5,000,000, 100,000 a batch / stream-static"))
    values = {label: found[way] for way, label in _WAYS.items() if way in found}
    return [Bars("Sales joined with 5 million products, on two cores", values)]


def small_master() -> list[Panel]:
    """A master that Spark could broadcast."""
    found = rates(newest("Spark, R 500,000, 100,000 a batch / broadcast"))
    names = {"stream-static": "stream-static join", "broadcast": "broadcast join"}
    values = {names.get(way, way): rate for way, rate in found.items() if "identity" not in way}
    return [Bars("A master of 500,000 rows", values)]


def of_memory() -> list[Panel]:
    """The engine beside a join with all of R in memory, pages held by the system or read."""
    cached = {
        f"{share} of R": newest(f"engine, in place, R 5,000,000, {share} /")["measured"]
        for share in ("1 %", "5 %", "10 %")
    }
    cached["all of R, in NumPy"] = 1.0
    read = {
        "1 % of 5 million": newest("engine, direct, R 5,000,000, 1 % /")["measured"],
        "10 % of 2 million": newest("engine, direct, R 2,000,000, 10 % /")["measured"],
        "all of R, in NumPy": 1.0,
    }

    def bars(title: str, values: dict[str, float]) -> Bars:
        ours = tuple(values)[:-1]
        return Bars(title, values, ours, "times as fast", lambda value: f"{value:.2f}")

    return [bars("Pages held by the system", cached), bars("Pages read from disk", read)]


def rate_by_memory() -> list[Panel]:
    """What more memory gives, to a task on Spark."""
    words = {"exponent 0": "no skew", "exponent 0.5": "some skew", "exponent 1": "strong skew"}
    found = {words[name]: points for name, points in by_memory(5_000_000, 100_000).items()}
    return [
        Curves(
            "R of 5 million rows (620 MB), tasks of 100,000 tuples",
            "memory of a task (MB)",
            "thousand tuples per CPU second",
            found,
            log_x=True,
        )
    ]


def far_master() -> list[Panel]:
    """A master in an object store."""
    names = {
        "local": "on a local disk",
        "cache": "in the store, cache filled",
        "cache, first": "in the store, cache empty",
        "no cache": "in the store, no cache",
        "one by one": "one request per tuple",
    }
    values = {label: object_store()[way] for way, label in names.items()}
    ours = tuple(names.values())[:-1]
    title = "R in a store that answers in 20 ms"
    return [Bars(title, values, ours, label=lambda value: f"{value:,.3g}")]


def several_masters() -> list[Panel]:
    """A star beside a chain of joins."""
    found = {
        (line["way"], line["tuples"]): line["tuples"] / line["median_seconds"] / 1e3
        for line in lines("star.jsonl")
    }
    names = {"star": "ss.join_star", "chain": "three joins in a row", "identity": "no join at all"}
    return [
        Bars(
            f"{tuples:,} tuples a batch",
            {label: found[way, tuples] for way, label in names.items()},
            ("ss.join_star",),
        )
        for tuples in (3_000, 100_000)
    ]


def bench_bars(where: str, rows: int) -> list[Panel]:
    """All ways beside each other, for a skewed stream and the most tuples that were measured."""
    at = max((some for some in bench(where) if some[0] == rows), key=lambda some: some[1:])
    _, exponent, tuples = at
    found = sorted(bench(where)[at], key=lambda line: -float(line["rate"]))
    return [
        Bars(
            f"{tuples:,} tuples, " + (f"exponent {exponent:g}" if exponent else "no skew"),
            {line["way"]: line["rate"] / 1e3 for line in found if line["rate"]},
            ours=("semistream", "semistream, packed"),
            label=lambda value: f"{value:,.3g}",
        )
    ]


def rate_by_rows() -> list[Panel]:
    """The rate for ever larger masters, held by the operating system or not."""

    def panel(title: str, is_log: bool, *places: str) -> Panel:
        found = {
            name.replace(", resident", "").replace(", cold", ""): [
                (n, rate / 1e3) for n, rate in at
            ]
            for where in places
            for name, at in scale(where, "rate").items()
        }
        unit = "thousand tuples per second"
        return Curves(title, "rows of R (million)", unit, found, log_x=True, log_y=is_log)

    return [
        panel("Resident", False, "resident"),
        panel("Cold", True, "cold", "cold, packed"),
    ]


def memory_by_rows() -> list[Panel]:
    """What a process holds, beside R and the memory that it may take."""
    held = scale("resident", "held") | scale("cold", "held")
    most: dict[float, float] = {}
    for points in held.values():
        for rows, size in points:
            most[rows] = max(most.get(rows, 0.0), size)

    def values(name: str) -> list[tuple[float, float]]:
        (points, *_) = scale("resident", name).values()
        return [(rows, size / 1e6) for rows, size in points]

    lines_of = {
        "R on disk": values("bytes"),
        "memory that was allowed": values("memory"),
        "memory that the process took": [(rows, size / 1e6) for rows, size in sorted(most.items())],
    }
    return [Curves("Memory", "rows of R (million)", "MB", lines_of, log_x=True, log_y=True)]


def front_stage() -> list[Panel]:
    """How many tuples the front stage answers, and what that saves."""
    found = [line for line in lines("admission.jsonl") if line["workload"].startswith("Zipf")]

    def points(rule: str, quantity: str, factor: float) -> list[tuple[float, float]]:
        some = [line for line in found if line["rule"] == rule]
        return [(float(line["workload"][5:]), factor * line[quantity]) for line in some]

    hits = {
        "chybridjoin, with a front stage": points("paper", "hit_ratio", 100),
        "hybridjoin, without": points("none", "hit_ratio", 100),
    }
    pages = {
        "chybridjoin, with a front stage": points("paper", "pages_per_1000", 1),
        "hybridjoin, without": points("none", "pages_per_1000", 1),
    }
    return [
        Curves("Tuples that never wait", "skew (Zipf exponent)", "% of the stream", hits),
        Curves("Pages read per 1,000 tuples", "skew (Zipf exponent)", "pages", pages),
    ]


def all_algorithms() -> list[Panel]:
    """All of them, on a skewed stream."""
    panels: list[Panel] = []
    for quantity, title in (("pages", "Pages read per 1,000 tuples"), ("rate", "Rate")):
        unit = "pages" if quantity == "pages" else "thousand tuples per second"
        values = {name: dict(points)[1.0] for name, points in by_skew(quantity, "key").items()}
        best = min if quantity == "pages" else max
        fastest = best(values, key=lambda name: values[name])
        panels.append(Bars(title, values, (fastest,), unit, lambda value: f"{value:,.3g}", True))
    return panels


def algorithm(name: str) -> list[Panel]:
    """One algorithm among all, against skew."""
    layout = "given" if name in ("xhybridjoin", "oxhybridjoin") else "key"
    skew = "skew (Zipf exponent)"
    titles = {"pages": "Pages read per 1,000 tuples", "rate": "Thousand tuples per second"}
    return [
        Curves(title, skew, "", by_skew(quantity, layout), (name,), log_y=True)
        for quantity, title in titles.items()
    ]


def paper(name: str) -> list[Panel]:
    """A figure of a paper: at the paper's prices, and by the clock."""
    figure = FIGURES[PAPER_FIGURES[name]]
    panels: list[Panel] = []
    titles = {"priced": "At the paper's prices", "measured": "Measured on our machine"}
    for timing, title in titles.items():
        drawn = Reproduction(RESULTS, timing, "laptop").drawn(figure)
        own = {label: points for label, points in drawn.lines.items() if "model" not in label}
        panels.append(Curves(title, figure.x, figure.y, own, (), figure.log_x, figure.log_y))
    return panels


CHARTS: Final[dict[str, Callable[[], list[Panel]]]] = {
    "chart-comparison": comparison,
    "chart-small-master": small_master,
    "chart-of-memory": of_memory,
    "chart-rate-by-memory": rate_by_memory,
    "chart-far-master": far_master,
    "chart-several-masters": several_masters,
    **{
        f"chart-bench-{where}-{rows}": partial(bench_bars, where, rows)
        for where in ("warm", "cold")
        for rows, _, _ in bench(where)
    },
    "chart-rate-by-rows": rate_by_rows,
    "chart-memory-by-rows": memory_by_rows,
    "chart-front-stage": front_stage,
    "chart-algorithms": all_algorithms,
    **{f"chart-{name}": partial(algorithm, name) for name in ALGORITHMS},
    **{f"paper-{name}": partial(paper, name) for name in ALGORITHMS},
}
"""The panels of each chart, by the name of its file."""
