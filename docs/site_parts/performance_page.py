"""The page of performance, docs/performance.md: written from the committed results, not by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from site_parts.results import bench, lines, measured_at, newest, object_store, rates, scale

__all__ = ["performance_page"]

_PACKED = "semistream, packed"

_SPARK = "Spark, R 5,000,000, 100,000 a batch /"
_STORES = ("LMDB", "RocksDB (30 MB)", "DuckDB (30 MB)", "DuckDB (1 GB, primary key)")


def performance_page() -> str:
    """The page as Markdown."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    large = newest(f"{_SPARK} stream-static")
    yield from (
        "# Performance",
        "",
        "Written by `make pictures` from the raw results in `benchmarks/results`; do not edit. "
        "Each figure has a script in `benchmarks/` that anyone can run. A peer runs in its best "
        "known configuration, on the same data and with the same memory, in turns with ours; "
        "medians are compared. Where it wins, this page says so.",
        "",
    )
    yield from _on_spark(large)
    yield from _small()
    yield from _side_by_side()
    yield from _cold()
    yield from _scale()
    yield from _engine()
    yield from _rest()
    yield from _targets()


def _on_spark(large: dict[str, Any]) -> Iterator[str]:
    found = rates(large)
    ours = found["semistream"]
    best = max(_STORES, key=lambda way: found[way])
    yield from (
        "## On Spark, a master larger than its memory",
        "",
        "```{picture} chart-comparison",
        f"{measured_at(large)}. R of 5 million rows, about 620 MB; left join of 100,000 sales a "
        "micro-batch, Zipf exponent 1; 30 MB for each task. R is in the page cache, for all ways.",
        "```",
        "",
        f"semistream is **{ours / found['stream-static']:.0f} times as fast as Spark's own "
        "stream-static join**, which reads all of R for each micro-batch. It is at "
        f"{100 * ours / found['wide identity']:.0f} % of what Spark does without any join, when "
        "rows of the same width go through Python and back. So no join inside `mapInArrow` can be "
        "much faster.",
        "",
        "*Where others are near.* A look-up that you write by hand in a key-value store does well "
        f"while all of R is in the page cache: the best, {best}, has "
        f"{100 * found[best] / ours:.0f} % of our rate. What you would still have to write are "
        "versions, updates while queries run, routes, and exactly once. [From a cold disk]"
        "(#from-a-cold-disk) it is another picture.",
        "",
    )


def _small() -> Iterator[str]:
    found = newest("Spark, R 500,000, 100,000 a batch / broadcast")
    rate = rates(found)
    yield from (
        "## On Spark, a master that could be broadcast",
        "",
        "```{picture} chart-small-master",
        f"{measured_at(found)}. R of 500,000 rows; 100,000 sales a micro-batch.",
        "```",
        "",
        f"{rate['semistream'] / rate['broadcast']:.1f} times a broadcast join's rate: Spark makes "
        "its table anew for each micro-batch. A batch job of one large frame is another matter, "
        "and not measured here: there Spark makes the table once, and nothing passes through "
        "Python. If R fits, a broadcast join is the simpler choice.",
        "",
    )


def _side_by_side() -> Iterator[str]:
    yield from (
        "## All ways side by side",
        "",
        "One command measures them all on your machine, in turns, and checks that they give the "
        "same rows: `pip install 'semistream[bench]'`, then `semistream bench`. R is in the page "
        "cache. *Memory* is what the Python workers hold, and the most that Java's heap held.",
        "",
    )
    for (rows, exponent, _), found in bench("warm").items():
        some = found[0]
        settings = some["settings"]
        yield from (
            f"### R of {_millions(rows)} rows",
            "",
            f"```{{picture}} chart-bench-warm-{rows}",
            f"{measured_at(some)}. {some['tuples']:,} tuples a micro-batch, exponent {exponent:g}, "
            f"{settings['memory_percent']:g} % of R as memory of a task.",
            "```",
            "",
            "| way | thousand tuples/s | semistream is … times as fast | by round "
            "| workers, MB | heap, MB |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
        )
        for line in sorted(found, key=lambda line: -float(line["rate"])):
            yield _way(line)
        yield ""


def _way(line: dict[str, Any]) -> str:
    if line["failed"]:
        return f"| {line['way']} | failed | | | | |"
    held, (low, high) = line["resident"], line["ratios"]
    memory = f"{held['workers'] / 1e6:,.0f} | {held['heap'] / 1e6:,.0f}" if held else "|"
    ratio = "|" if line["way"] == "semistream" else f"{line['ratio']:.2f} | {low:.2f} – {high:.2f}"
    return f"| {line['way']} | {line['rate'] / 1e3:,.0f} | {ratio} | {memory} |"


def _cold() -> Iterator[str]:
    yield from (
        "## From a cold disk",
        "",
        "The same command also measures tasks without Spark when nothing of R is in memory: before "
        "each, the operating system is asked to forget the files. What each way keeps in its own "
        'memory stays. *Packed* is a master that was built with `compression="packed"`: a third '
        "of the bytes, of which look-ups unpack only the rows that they find.",
        "",
    )
    for rows in sorted({rows for rows, _, _ in bench("cold")}):
        some = {at: lines for at, lines in bench("cold").items() if at[0] == rows}
        first = next(iter(some.values()))[0]
        yield from (
            f"```{{picture}} chart-bench-cold-{rows}",
            f"{measured_at(first)}. R of {_millions(rows)} rows, "
            f"{first['settings']['memory_percent']:g} % of R as memory of a task; DuckDB has 30 MB "
            "at least, LMDB no limit.",
            "```",
            "",
            "| tuples a task | exponent | way | ms a task | packed is … times as fast |",
            "| ---: | ---: | --- | ---: | ---: |",
        )
        for (_, exponent, tuples), found in some.items():
            ours = next(line["rate"] for line in found if line["way"] == _PACKED)
            for line in sorted(found, key=lambda line: -float(line["rate"])):
                ratio = "" if line["way"] == _PACKED else f"{ours / line['rate']:.2f}"
                yield (
                    f"| {tuples:,} | {exponent:g} | {line['way']} "
                    f"| {tuples / line['rate'] * 1e3:,.0f} | {ratio} |"
                )
        yield ""
    yield from (
        "*Where others are better.* Without packed pages DuckDB is ahead where a task needs most "
        "of R: its file has a quarter of the bytes. Stores that look up single keys come nearer "
        "where a task has few tuples and R is large.",
        "",
    )


def _scale() -> Iterator[str]:
    memory = lines("scale.jsonl")
    largest = max(memory, key=lambda line: int(line["rows"]))
    resident = scale("resident", "rate")
    least = min(points[-1][1] for points in resident.values())
    packed = [float(line["held"]) / 1e6 for line in memory if line["where"] == "cold, packed"]
    yield from (
        "## Larger and larger masters",
        "",
        "```{picture} chart-rate-by-rows",
        f"From `benchmarks/scale.py`: tasks of {largest['tuples']:,} tuples without Spark, 1 % "
        "of R as memory and 4 MB at least. Resident: R is in the page cache. Cold: nothing of "
        "it is.",
        "```",
        "",
        f"With {_millions(largest['rows'])} rows ({largest['bytes'] / 1e9:.1f} GB) and "
        f"{largest['memory'] / 1e6:.0f} MB of memory one task has {least / 1e6:.2f} million tuples "
        "a second at least, if the operating system holds R.",
        "",
        "```{picture} chart-memory-by-rows",
        "What the process took beside compiled code, against what `memory` allowed. It includes "
        "batches on their way in and out, which are the caller's, and threads. Packed pages from a "
        f"cold disk, which are not drawn, took {min(packed):.0f} to {max(packed):.0f} MB.",
        "```",
        "",
    )


def _millions(rows: int) -> str:
    return f"{rows / 1e6:g} million" if rows >= 1_000_000 else f"{rows:,}"


def _engine() -> Iterator[str]:
    read = newest("engine, direct, R 5,000,000, 1 % /")
    held = newest("engine, in place, R 5,000,000, 5 % /")
    small = newest("engine, in place, R 500,000, 5 % /")
    yield from (
        "## The engine alone, beside all of R in memory",
        "",
        "```{picture} chart-of-memory",
        f"{measured_at(held)}. The engine without Spark, as a multiple of a join with all of R in "
        "memory, searched with NumPy and gathered with Arrow.",
        "```",
        "",
        "With pages that the operating system holds, and 5 % of R as memory, the engine has "
        f"{held['measured']:.1f} times the rate of a search in memory: it finds and copies rows in "
        f"compiled code. With a small R (500,000 rows) it is {small['measured']:.2f} times.",
        "",
        "*Where memory is better.* If pages must really come from the disk (direct I/O), all of R "
        f"in memory wins: with 1 % of R as memory the engine has {100 * read['measured']:.0f} % of "
        "its rate. If R fits into the memory that you have, let it: give `memory` accordingly, and "
        "every worker keeps all of R.",
        "",
    )


def _rest() -> Iterator[str]:
    far = object_store()
    yield from (
        "## What memory gives",
        "",
        "```{picture} chart-rate-by-memory",
        'From `benchmarks/micro_batches.py`: the sizes that "auto" chooses, in CPU time.',
        "```",
        "",
        "[Size the memory](size-the-memory.md) says how to find the knee for yours.",
        "",
        "## Several masters",
        "",
        "```{picture} chart-several-masters",
        "From `benchmarks/star.py`: masters of 2 million, 500,000 and 100,000 rows.",
        "```",
        "",
        "[One star](star.md) instead of three joins in a row saves two passes through Python.",
        "",
        "## A master in an object store",
        "",
        "```{picture} chart-far-master",
        "From `benchmarks/object_store.py`: a server of the S3 protocol on loopback that takes "
        "20 ms longer for each answer; R of 200,000 rows, 5 % of it as memory.",
        "```",
        "",
        f"With [a cache on a local disk](object-stores.md) that is filled, "
        f"{100 * far['cache'] / far['local']:.0f} % of the rate of a local master. Until it is "
        "filled, and without a cache, the network decides.",
        "",
        "## Pipelines",
        "",
        *_pipelines(),
        "",
        "## Building a master",
        "",
        _build(),
        "",
    )


def _pipelines() -> Iterator[str]:
    names = {
        "identity": "identity `mapInArrow`, nothing written",
        "join": "`ss.join`, nothing written",
        "write": "Spark writes Parquet, no join",
        "join, write": "`ss.join`, then Spark writes Parquet",
        "pipeline": "`ss.Pipeline` to Parquet",
        "two routes": "`ss.Pipeline` with rejected tuples apart",
        "all routes": "`ss.Pipeline` with all routes in use",
    }
    found = {line["way"]: line for line in lines("pipeline.jsonl")}
    some = next(iter(found.values()))["parameters"]
    yield f"Seconds of a micro-batch of {some['small']:,} tuples, from `benchmarks/pipeline.py`:"
    yield from ("", "| way | seconds |", "| --- | ---: |")
    for way, told in names.items():
        yield f"| {told} | {found[way]['median']:.2f} |"
    yield from (
        "",
        "A pipeline's batch is one Spark job. With more routes it writes more files, and takes "
        "longer.",
    )


def _build() -> str:
    (found,) = lines("build.jsonl")[-1:]
    asked = found["parameters"]
    return (
        f"{asked['rows'] / 1e6:,.0f} million rows, {found['bytes'] / 1e9:.1f} GB, were built in "
        f"{found['seconds'] / 60:.0f} minutes on {asked['cores']} cores with a driver of "
        f"{asked['memory'].upper()}B (`benchmarks/build.py`). All processes together held "
        f"{found['together'] / 1e9:.1f} GB at most: the master need not fit into memory."
    )


def _targets() -> Iterator[str]:
    yield from (
        "## Every target",
        "",
        "`make targets` measures these side by side. The newest result of each; *by round* is the "
        "lowest and the highest of single rounds.",
        "",
        "| measure | target | measured | by round | |",
        "| --- | ---: | ---: | ---: | --- |",
    )
    found: dict[str, dict[str, Any]] = {}
    for line in sorted(lines("targets.jsonl"), key=lambda line: str(line["at"])):
        found[line["measure"]] = line
    for line in sorted(found.values(), key=lambda line: int(line["row"])):
        unit = "" if line["other"] else " ms"
        sign = "≤" if line["at_most"] else "≥"
        low, high = line["by_round"]
        met = "met" if line["met"] else "missed"
        yield (
            f"| {line['measure']} | {sign} {line['bound']:g}{unit} "
            f"| {line['measured']:.2f}{unit} | {low:.2f} – {high:.2f} | {met} |"
        )
    yield from (
        "",
        "\"a / b\" is a's rate over b's. Targets that are missed stay on the list. That of the "
        "key-value stores cannot be met while R is in the page cache: it is above what Spark does "
        "without any join.",
        "",
        "More results: [the cost model against runs](cost-model.md#how-near-it-is), "
        "[rules of the front stage](front-stage.md#the-rules-compared), "
        "[joins with conditions](joins.md#what-it-costs), [the papers' figures](reproduction.md).",
    )
