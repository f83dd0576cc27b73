"""Pages read per 1,000 stream tuples: DEMANDJOIN, the papers' algorithms, and an offline bound.

    python benchmarks/pages.py [--memory 0.5 1 2 5 10 20] [--streams 0 0.5 1 1.5 drifting bursty]
    python benchmarks/pages.py --clock
    python benchmarks/pages.py --table

R has rows of about 120 bytes, in key order; S has tuples of 20 bytes; the budget is a share of R's
bytes on disk, and covers index, buffers, counters and slots. A larger share goes with a smaller R,
so that it is 1.2 to 3 MB everywhere. Partitions are of one page for all that look pages up: that is
what reads the fewest. Counted is the second half of the stream, up to its last arrival. All is
seeded and pages do not depend on the machine; CPU time, of the whole run and all its threads, does.

The streams: Zipf's law with exponents 0, 0.5, 1 and 1.5, scattered over R; "drifting", exponent 1,
where the 50 most frequent keys give way to others twenty times; "bursty", where half of the tuples
belong to 100 keys, each of which comes for some 50,000 tuples and never again, the rest being of
exponent 0.5.

The offline bound knows the whole stream. It keeps the rows of the keys that are the most frequent
of this very stream, in the best of five shares of the memory, for nothing but their bytes. What is
left must wait in a slot of DEMANDJOIN's size until its page is read. For any price x of a slot per
tuple of time, the reads of any schedule are at least

    Σ over pages of min (reads + x · waiting) − x · slots · time,

since no schedule waits more than all slots all the time. The minimum of a page is found exactly
(dynamic programming over its arrivals), and the best of several prices is taken. So no order of
reads is below it, with these rows kept; exchanging kept rows in time might be. It begins with
nothing waiting and may end with all slots full, so the half of the stream is repeated five times.

`--clock` runs the fastest of them in the same cells by the clock, with direct reads and the sizes
that each has by default, in turns; the median of three runs of the second half counts.

Writes a JSON line per cell and algorithm to benchmarks/results/pages.jsonl, or pages_clock.jsonl;
`--table` prints those as Markdown tables and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import semistream as ss
from results import machine, write_results
from semistream.metrics import Metrics
from semistream.workload import ZipfKeys, products
from semistream.workload.zipf import scattered

RESULTS = Path(__file__).parent / "results" / "pages.jsonl"
CLOCK = RESULTS.with_name("pages_clock.jsonl")
OURS, BOUND = "demandjoin", "bound"
FASTEST = (OURS, "hybridjoin", "chybridjoin")
"""Those that run by the clock: the others read more pages."""
TURNS = 3
PAPERS = (
    *("hybridjoin", "chybridjoin", "cmeshjoin", "xhybridjoin", "oxhybridjoin"),
    *("meshjoin", "rmeshjoin", "cinlj", "inlj", "hybridjoin (single)", "chybridjoin (single)"),
)
"""Single look-ups, as in the papers, have more memory for slots; sets of them are our default."""
RULES: dict[str, dict[str, Any]] = {
    "demandjoin (probation)": {"threshold": 1},
    "demandjoin (tinylfu)": {"admission": "tinylfu"},
}
"""Other ways to let rows into DEMANDJOIN's front stage. On probation every key comes in that is
read, and the first to leave are those that nobody has asked for since."""
LEARNING = (OURS, *RULES, "chybridjoin", "chybridjoin (single)")
STEADY = ("meshjoin", "rmeshjoin")
"""They read as many pages for any tuple, from the first on."""
SLOW = ("cinlj", "inlj")
"""A page for each tuple that misses: few tuples show it."""
STREAMS = ("0", "0.5", "1", "1.5", "drifting", "bursty")
MASTERS = {
    0.5: (2_000_000, 64 << 10),
    1.0: (1_000_000, 32 << 10),
    2.0: (1_000_000, 32 << 10),
    5.0: (500_000, 32 << 10),
    10.0: (250_000, 16 << 10),
    20.0: (125_000, 16 << 10),
}
"""By memory in percent of R: rows of R, and bytes of its pages."""
SLOT, KEPT_ROW = 29.0, 180.0
"""Bytes of a waiting tuple and of a kept row, for the bound: those of DEMANDJOIN here."""
BATCH = 10_000
REPEATS = 5
"""Of a half of the stream, for the bound."""


def keys_of(stream: str, tuples: int, rows: int, seed: int) -> NDArray[np.int64]:
    """The keys of a stream."""
    if stream not in ("drifting", "bursty"):
        return scattered(ZipfKeys(rows, float(stream), seed=seed).ranks(tuples), rows, seed)
    rng, at = np.random.default_rng(seed), np.arange(tuples)
    if stream == "drifting":
        ranks = ZipfKeys(rows, 1.0, seed=seed).ranks(tuples) + at // (tuples // 20 + 1) * 50
        return scattered(ranks % rows, rows, seed)
    steady = scattered(ZipfKeys(rows, 0.5, seed=seed).ranks(tuples), rows, seed)
    hot = rng.integers(0, rows, tuples // 500 + 101)
    bursts = hot[at // 500 + rng.integers(0, 100, tuples)]
    return np.where(rng.random(tuples) < 0.5, bursts, steady)


def batches_of(keys: NDArray[np.int64]) -> list[pa.RecordBatch]:
    """Sales of these keys."""
    number = np.arange(len(keys))
    table = pa.table(
        {
            "product_id": keys,
            "quantity": (number % 9 + 1).astype(np.int32),
            "sold_at": number.astype("datetime64[us]"),
        }
    )
    return list(table.to_batches(max_chunksize=BATCH))


def measured(engine: ss.Engine, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    """One run, counted from half of the stream on to its last tuple."""
    seen: list[Metrics] = []
    fronts: list[float] = []

    def feed() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == len(batches) // 2:
                seen.append(engine.metrics())
            yield batch
        seen.append(engine.metrics())
        fronts.append(engine.memory().get("front stage", 0) / engine.memory()["budget"])

    began = time.process_time()
    rows = sum(batch.num_rows for batch in engine.run(feed()))
    seconds = time.process_time() - began
    half, end = seen[0], seen[-1]
    assert rows == end.arrived, f"{rows} result rows for {end.arrived} tuples"
    tuples = end.arrived - half.arrived
    return {
        "tuples": end.arrived,
        "pages_per_1000": (end.pages_read - half.pages_read) / tuples * 1000,
        "hit_ratio": (end.front_hits - half.front_hits) / tuples,
        "front_share": fronts[0],
        "cpu_micros_per_tuple": seconds / end.arrived * 1e6,
        "peak": engine.metrics().peak_memory,
    }


@numba.njit(cache=True)
def least_cost(
    begins: NDArray[np.int64], times: NDArray[np.int64], end: int, price: float
) -> float:
    """Σ over pages of the least reads + price · waiting; arrivals of page p from begins[p] on."""
    total = 0.0
    longest = 0
    for page in range(len(begins) - 1):
        longest = max(longest, begins[page + 1] - begins[page])
    cost = np.empty(longest + 1)
    for page in range(len(begins) - 1):
        first, count = begins[page], begins[page + 1] - begins[page]
        cost[0] = 0.0
        # cost[j]: the first j arrivals are served, the last of them by a read when it comes.
        for j in range(1, count + 1):
            best, waited, last = 1e300, 0.0, times[first + j - 1]
            for i in range(j - 1, -1, -1):
                waited += price * (last - times[first + i])
                best = min(best, cost[i] + 1.0 + waited)
                # By then a read in between is cheaper: it saves more than waited / (1 + ln j).
                if waited > 10.0:
                    break
            cost[j] = best
        best, waited = cost[count], 0.0
        for i in range(count - 1, -1, -1):
            waited += price * (end - times[first + i])
            best = min(best, cost[i] + waited)
            if waited > 10.0:
                break
        total += best
    return total


def bound(keys: NDArray[np.int64], rows: int, pages: int, pool: float) -> dict[str, Any]:
    """The offline bound for the second half of a stream, with `pool` bytes for rows and slots."""
    half = keys[len(keys) // 2 :]
    keys = np.tile(half, max(1, REPEATS * 500_000 // max(len(half), 500_000)))
    frequency = np.bincount(keys, minlength=rows)
    order = np.argsort(-frequency, kind="stable")
    hits = np.concatenate([[0], np.cumsum(frequency[order])]) / len(keys)
    kept = {s: min(rows, int(pool * s / KEPT_ROW)) for s in (0.0, 0.02, 0.05, 0.15, 0.3)}
    share = min(kept, key=lambda s: (1 - hits[kept[s]]) / (1 - s))
    missed = ~np.isin(keys, order[: kept[share]])
    times, page = np.flatnonzero(missed), keys[missed] * pages // rows
    by_page = np.argsort(page, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(page, minlength=pages))])
    slots, found = pool * (1 - share) / SLOT, 0.0
    # Reads per tuple and slots tell about which price it is; the best of some around it counts.
    price = len(times) / len(keys) * pages / (2 * slots**2) + 1e-12
    for factor in (1 / 4, 1 / 2, 0.75, 1, 1.5, 2):
        x = price * factor
        least = least_cost(begins, times[by_page], len(keys), x) - x * slots * len(keys)
        found = max(found, least)
    return {"pages_per_1000": found / len(keys) * 1000, "hit_ratio": float(hits[kept[share]])}


def options_of(algorithm: str) -> dict[str, Any]:
    """Partitions of a page where pages are looked up; a scan reads all pages anyway."""
    if algorithm in (*STEADY, *SLOW, "cmeshjoin"):
        return {}
    single = {"look_ups": 0} if algorithm.endswith("(single)") else {}
    return {"partition_pages": 1} | single | RULES.get(algorithm, {})


def longer_for(stream: str) -> int:
    """Where nearly all tuples are answered in front, it takes many until others fill the slots."""
    return 10 if stream == "1.5" else 1


def length(fillings: float, memory: int, stream: str) -> int:
    """The tuples of a stream."""
    return int(fillings * memory / SLOT) // BATCH * BATCH * longer_for(stream)


def cell(
    master: ss.MasterTable, stream: str, percent: float, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """All algorithms on one stream with one memory."""
    size = int(master.pages.length.sum())
    memory = int(size * percent / 100)
    rows, longer = master.row_count, longer_for(stream)
    tuples = length(args.fillings, memory, stream)
    keys = keys_of(stream, tuples, rows, args.seed)
    batches = batches_of(keys)
    ours: ss.Engine | None = None
    for algorithm in args.algorithms or (OURS, *PAPERS):
        some = batches if algorithm in LEARNING else batches[: len(batches) // longer]
        if algorithm in STEADY:
            some = batches[: len(batches) // longer // 4]
        if algorithm in SLOW:
            some = batches[:1]
        try:
            engine = ss.engine(
                master,
                algorithm=algorithm.split()[0],
                on="product_id",
                memory=memory,
                io="unmapped",
                **options_of(algorithm),
            )
            found = measured(engine, some)
        except ss.errors.BudgetError as error:
            found = {"pages_per_1000": None, "error": str(error)}
        if algorithm == OURS:
            ours = engine
        yield {"stream": stream, "memory_percent": percent, "algorithm": algorithm} | found
    if ours is None:
        return
    assert ours.plan is not None
    parts = ours.plan.parts
    pool = parts["stream table"] + parts["front stage"]
    found = bound(keys, rows, len(master.pages), pool)
    yield {"stream": stream, "memory_percent": percent, "algorithm": BOUND} | found


def master_for(percent: float, folder: Path, seed: int) -> ss.MasterTable:
    """The master table for a memory, made if it is not there."""
    rows, page_bytes = MASTERS[percent]
    path = folder / f"{rows}.master"
    if not path.exists():
        table = products(rows, seed=seed)
        ss.MasterTable.from_arrow(table, path, key="product_id", page_bytes=page_bytes)
    return ss.MasterTable.open(path)


def warm_up(master: ss.MasterTable) -> None:
    """Compile, so that no cell pays for it."""
    batches = batches_of(keys_of("1", 20 * BATCH, master.row_count, seed=1))
    memory = int(master.pages.length.sum()) // 8
    for algorithm in (OURS, *PAPERS):
        some = batches[:1] if algorithm in SLOW else batches
        options = options_of(algorithm)
        run = ss.engine(
            master,
            algorithm=algorithm.split()[0],
            on="product_id",
            memory=memory,
            io="unmapped",
            **options,
        ).run(some)
        sum(batch.num_rows for batch in run)


def run(args: argparse.Namespace) -> None:
    """All cells, each written when it is done."""
    where = machine(ss.__version__)
    with tempfile.TemporaryDirectory() as temporary:
        warm_up(master_for(20.0, Path(args.folder or temporary), args.seed))
        for percent in args.memory:
            master = master_for(percent, Path(args.folder or temporary), args.seed)
            size = int(master.pages.length.sum())
            parameters = {"rows": master.row_count, "pages": len(master.pages), "bytes": size}
            for stream in args.streams:
                lines = []
                for line in cell(master, stream, percent, args):
                    lines.append(line | {"seed": args.seed, "parameters": parameters})
                    print(percent, stream, line["algorithm"], line["pages_per_1000"], flush=True)
                write_results(RESULTS, lines, where, append=True)


def clocked(engine: ss.Engine, batches: list[pa.RecordBatch]) -> float:
    """Tuples a second, from half of the stream on to its last tuple."""
    at: list[float] = []

    def feed() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == len(batches) // 2:
                at.append(time.perf_counter())
            yield batch
        at.append(time.perf_counter())

    sum(batch.num_rows for batch in engine.run(feed()))
    second_half = sum(int(batch.num_rows) for batch in batches[len(batches) // 2 :])
    return second_half / (at[1] - at[0])


def run_clock(args: argparse.Namespace) -> None:
    """All cells by the clock."""
    where = machine(ss.__version__)
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        warm_up(master_for(20.0, Path(args.folder or temporary), args.seed))
        for percent, stream in product(args.memory, args.streams):
            master = master_for(percent, Path(args.folder or temporary), args.seed)
            memory = int(master.pages.length.sum() * percent / 100)
            tuples = length(args.fillings, memory, stream)
            batches = batches_of(keys_of(stream, tuples, master.row_count, args.seed))
            rates: dict[str, list[float]] = {name: [] for name in FASTEST}
            for _ in range(TURNS):
                for name, found in rates.items():
                    engine = ss.engine(
                        master, algorithm=name, on="product_id", memory=memory, io="direct"
                    )
                    found.append(clocked(engine, batches))
            lines = [
                {
                    "stream": stream,
                    "memory_percent": percent,
                    "algorithm": name,
                    "tuples": tuples,
                    "rates": found,
                    "rate": statistics.median(found),
                    "seed": args.seed,
                    "rows": master.row_count,
                }
                for name, found in rates.items()
            ]
            told = {line["algorithm"]: round(line["rate"]) for line in lines}
            print(percent, stream, told, flush=True)
            write_results(CLOCK, lines, where, append=True)


def clock_markdown(lines: list[dict[str, Any]]) -> str:
    """A line per cell, and in how many DEMANDJOIN is ahead."""
    rows = [
        "| memory | stream | DEMANDJOIN, thousand tuples/s | best of the papers | which | ratio |",
        "| ---: | --- | ---: | ---: | --- | ---: |",
    ]
    ratios = []
    for (percent, stream), cell in in_order(cells(lines)):
        best = max((x for n, x in cell.items() if n != OURS), key=lambda x: x["rate"])
        ratios.append(cell[OURS]["rate"] / best["rate"])
        rows.append(
            f"| {percent:g}% | {stream} | {cell[OURS]['rate'] / 1e3:,.0f} "
            f"| {best['rate'] / 1e3:,.0f} | {best['algorithm']} | {ratios[-1]:.2f} |"
        )
    ahead, behind = sum(r > 1.05 for r in ratios), sum(r < 0.95 for r in ratios)
    rows.append("")
    rows.append(
        f"By the clock: ahead by more than 5 % in {ahead} of {len(ratios)} cells, behind by more "
        f"than 5 % in {behind}, median ratio {np.median(ratios):.2f}."
    )
    return "\n".join(rows)


def cells(lines: list[dict[str, Any]]) -> dict[tuple[float, str], dict[str, dict[str, Any]]]:
    """The last line of each cell and algorithm."""
    found: dict[tuple[float, str], dict[str, dict[str, Any]]] = {}
    for line in lines:
        found.setdefault((line["memory_percent"], line["stream"]), {})[line["algorithm"]] = line
    return found


def in_order(
    found: dict[tuple[float, str], dict[str, dict[str, Any]]],
) -> list[tuple[tuple[float, str], dict[str, dict[str, Any]]]]:
    """The cells by memory and stream."""
    return sorted(found.items(), key=lambda item: (item[0][0], STREAMS.index(item[0][1])))


def best_of(cell: dict[str, dict[str, Any]]) -> tuple[float, str]:
    """The fewest pages of the papers' algorithms in a cell, and whose they are."""
    found = {name: cell[name]["pages_per_1000"] for name in PAPERS if name in cell}
    return min((pages, name) for name, pages in found.items() if pages is not None)


def markdown(lines: list[dict[str, Any]]) -> str:
    """A line per cell, and how many cells reach the aims."""
    rows = [
        "| memory | stream | DEMANDJOIN | best of the papers | which | ratio | bound |",
        "| ---: | --- | ---: | ---: | --- | ---: | ---: |",
    ]
    ratios = []
    by_memory = in_order(cells(lines))
    for (percent, stream), cell in by_memory:
        ours, offline = cell[OURS], cell[BOUND]["pages_per_1000"]
        pages, of_pages = best_of(cell)
        ratios.append(ours["pages_per_1000"] / max(pages, 1e-9))
        rows.append(
            f"| {percent:g}% | {stream} | {ours['pages_per_1000']:.2f} | {pages:.2f} | {of_pages} "
            f"| {ratios[-1]:.2f} | {offline:.2f} |"
        )
    rows.append("")
    rows.append(
        f"Pages: above the best of the papers in {sum(r > 1 for r in ratios)} of {len(ratios)} "
        f"cells, at 0.85 of it or below in {sum(r <= 0.85 for r in ratios)}."
    )
    return "\n".join(rows)


def rules_markdown(lines: list[dict[str, Any]]) -> str:
    """Pages with other rules of admission, beside those of DEMANDJOIN's own."""
    rows = [f"| memory | stream | {' | '.join(RULES)} |", "| ---: | --- |" + " ---: |" * len(RULES)]
    for (percent, stream), cell in in_order(cells(lines)):
        if all(rule in cell for rule in RULES):
            pages = [cell[rule]["pages_per_1000"] for rule in RULES]
            ratios = [f"{each / cell[OURS]['pages_per_1000']:.2f}" for each in pages]
            rows.append(f"| {percent:g}% | {stream} | {' | '.join(ratios)} |")
    return "\n".join(rows)


def main() -> None:
    """Run and write, or print what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fillings", type=float, default=3.0, help="tuples per slot")
    parser.add_argument("--memory", type=float, nargs="*", default=[*MASTERS])
    parser.add_argument("--streams", nargs="*", default=STREAMS)
    parser.add_argument("--algorithms", nargs="*", help="only these; the bound goes with ours")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--folder", help="where master tables are, or are made and left")
    parser.add_argument("--clock", action="store_true", help="by the clock, with direct reads")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
        print(markdown(lines) + "\n\n" + rules_markdown(lines))
        if CLOCK.is_file():
            print("\n" + clock_markdown([json.loads(x) for x in CLOCK.read_text().splitlines()]))
    elif args.clock:
        run_clock(args)
    else:
        run(args)


if __name__ == "__main__":
    main()
