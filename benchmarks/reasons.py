"""Reasons for differences from the papers, tested: what was supposed is changed, and run again.

    python benchmarks/reasons.py [positions shedding learning replacing expiry]

Where docs/reproduction.md says why ours differs from a figure, the reason should be more than a
thought. Each experiment here changes what the reason names, and nothing else:

- *positions*: the front stage has taken the frequent keys out of the queue, so that it hardly
  matters which element of the queue is looked up under overload. Without a front stage (HYBRIDJOIN)
  it should matter.
- *shedding*: to consider every arrival costs processor time. At the prices of I/O alone, tuned
  shedding should be further ahead of shedding upfront.
- *learning*: CMESHJOIN learns of a key once in a cycle of its scan, so a stream that moves on
  sooner leaves it behind. With longer intervals it should catch up.
- *replacing*: with a threshold of 1 a partition brings more keys than the front stage has places.
  Replaced one after the other, late keys push out early ones, and hot keys stay; replaced all at
  once they do not.
- *expiry*: a MESHJOIN that removes all waiting tuples of a key when the oldest expires loses tuples
  of hot keys. How much is output, for each exponent, and how much behind a front stage?

All of it is seeded, at the papers' prices or counted, and does not depend on the machine. Writes
benchmarks/results/reasons.jsonl; what other experiments left there stays.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import semistream as ss
from results import machine, write_results
from semistream.workload import ZipfKeys, products, scattered
from semistream_papers.claims.cached_reasons import joined_share
from semistream_papers.figures.catalogue import FIGURES
from semistream_papers.runs import platforms
from semistream_papers.runs.runner import run
from semistream_papers.runs.setting import scaled

RESULTS = Path(__file__).parent / "results" / "reasons.jsonl"
SCALE = "smoke"
SEED = 2007
IO = ("partition_read", "sequential_read", "byte_read", "page_read", "index_page_read")
"""Prices of I/O, among those of the papers' machines."""
Lines = Iterator[dict[str, Any]]


def positions() -> Lines:
    """Rates by the position of the look-up element, with a front stage and without."""
    figure = FIGURES["skewed-7"]
    base = figure.base
    assert base is not None
    for algorithm in ("chybridjoin", "hybridjoin"):
        for position in figure.smoke:
            setting = base.with_(algorithm=algorithm, look_up_position=position)
            found = run(scaled(setting, SCALE))
            yield {"algorithm": algorithm, "position": position, "rate": found["rate"]}


def shedding() -> Lines:
    """Rates of tuned shedding and of shedding upfront, at all prices and at those of I/O only."""
    base = FIGURES["skewed-8"].base
    assert base is not None
    assert base.platform not in platforms.PLATFORMS
    usual = base.priced_by
    free = {f.name: 0.0 for f in fields(usual.factors) if f.name not in IO}
    for prices, factors in {
        "all": usual.factors,
        "I/O": replace(usual.factors, **free),
    }.items():
        platforms.PLATFORMS[base.platform] = replace(usual, factors=factors)
        for arrivals in (20_000.0, 60_000.0, 200_000.0):
            for name in ("considering", "keep"):
                setting = base.with_(shedding=name, arrival_rate=arrivals)
                rate = run(scaled(setting, SCALE))["rate"]
                yield {"shedding": name, "prices": prices, "arrivals": arrivals, "rate": rate}
    del platforms.PLATFORMS[base.platform]


def learning() -> Lines:
    """Hits of CMESHJOIN and CHYBRIDJOIN on a stream whose frequent keys change now and then."""
    table = products(100_000, SEED)
    with tempfile.TemporaryDirectory() as folder:
        master = ss.MasterTable.from_arrow(table, f"{folder}/r", key="product_id")
        for algorithm in ("cmeshjoin", "chybridjoin"):
            for cycles in (0.1, 0.5, 1, 2, 5, 10):
                yield _learned(master, algorithm, cycles)


def _learned(master: ss.MasterTable, algorithm: str, cycles: float) -> dict[str, Any]:
    rows, batch = master.row_count, 2_000
    options: dict[str, Any] = {
        "front_percent": 15,
        "memory": "2MB",
        "on": "product_id",
        "io": "unmapped",
    }
    engine = ss.engine(master, algorithm=algorithm, **options)
    cycle = engine.planned(_sales(np.arange(10))).stream_slots
    interval = max(1, int(cycle * cycles))
    keys, count = ZipfKeys(rows, 1.0, SEED), max(12 * interval, 12 * cycle)

    def stream() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, batch):
            at = np.arange(start, start + batch) // interval
            ranks = keys.ranks(batch)
            yield _sales(scattered((ranks + at * 7_919) % rows, rows, SEED))

    for _ in engine.run(stream()):
        pass
    found = engine.metrics()
    return {
        "algorithm": algorithm, "cycles": cycles, "interval": interval, "tuples": count,
        "hit_share": found.front_hits / found.arrived,
    }  # fmt: skip


def _sales(keys: NDArray[np.int64]) -> pa.RecordBatch:
    return pa.record_batch({"product_id": keys, "number": np.arange(len(keys), dtype=np.int64)})


def replacing() -> Lines:
    """Hits with a threshold of 1, where the least frequent give way at once or one by one.

    A partition brings some hundred keys: more than the fewer places, and less than the more.
    """
    for places in (60, 300):
        for way in ("at once", "one by one"):
            yield {"way": way, "places": places, "hit_share": _hit_share(places, way)}


def _hit_share(places: int, way: str) -> float:
    """Of the second half of a stream, behind a scan of 100 partitions that meets all chunks."""
    keys, partitions, w, chunks = 50_000, 100, 400, 100
    drawn = scattered(ZipfKeys(keys, 1.0, SEED).ranks(w * chunks * 8), keys, SEED)
    of = np.arange(keys) * partitions // keys
    waiting: Counter[int] = Counter()
    kept: dict[int, float] = {}
    entered: deque[list[int]] = deque()
    hits, half = 0, len(drawn) // w // 2
    for turn in range(2 * half):
        chunk = drawn[turn * w : (turn + 1) * w].tolist()
        missed = [key for key in chunk if key not in kept]
        for key in chunk:
            if key in kept:
                kept[key] += 1
        hits += (w - len(missed)) * (turn >= half)
        waiting.update(missed)
        entered.append(missed)
        if len(entered) > chunks:
            waiting -= Counter(entered.popleft())
        now = turn % partitions
        here = [key for key in waiting if of[key] == now and key not in kept]
        _replace(kept, [(key, float(waiting[key])) for key in here], places, way)
        if now == partitions - 1:
            kept = {key: frequency / 2 for key, frequency in kept.items()}
    return hits / (w * half)


def _replace(kept: dict[int, float], new: list[tuple[int, float]], places: int, way: str) -> None:
    room = places - len(kept)
    kept.update(new[:room])
    rest = new[room:]
    if way == "at once":
        rest = sorted(rest, key=lambda one: -one[1])[:places]
        for key in sorted(kept, key=lambda key: kept[key])[: len(rest)]:
            del kept[key]
        kept.update(rest)
        return
    for key, frequency in rest:
        least = min(kept, key=lambda one: kept[one])
        del kept[least]
        kept[key] = frequency


def expiry() -> Lines:
    """What the authors' MESHJOIN outputs, with their sizes: 330 chunks of 4,835 tuples."""
    keys, chunks, waiting = 2_000_000, 330, 4_835 * 330
    for exponent in (0.0, 0.25, 0.5, 0.75, 1.0):
        share = joined_share(waiting, chunks, keys, exponent)
        yield {"exponent": exponent, "front": 0, "output": share, "hits": 0.0}
    ranks = np.arange(1, keys + 1)
    shares = 1 / ranks / (1 / ranks).sum()
    front = int(np.searchsorted(np.cumsum(shares), 0.51)) + 1
    hits = float(shares[:front].sum())
    behind = joined_share(waiting, chunks, keys, 1.0, front)
    yield {"exponent": 1.0, "front": front, "output": hits + (1 - hits) * behind, "hits": hits}


EXPERIMENTS: dict[str, Callable[[], Lines]] = {
    "positions": positions,
    "shedding": shedding,
    "learning": learning,
    "replacing": replacing,
    "expiry": expiry,
}


def main() -> None:
    """Run what was asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*EXPERIMENTS, []], help="which to run")
    names = parser.parse_args().names or list(EXPERIMENTS)
    known = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    for name in names:
        found = [{"experiment": name, "seed": SEED} | line for line in EXPERIMENTS[name]()]
        for line in found:
            print({key: value for key, value in line.items() if key not in ("seed",)})
        known = [text for text in known if json.loads(text)["experiment"] != name]
        RESULTS.write_text("".join(f"{text}\n" for text in known))
        write_results(RESULTS, found, machine(ss.__version__), append=True)
        known = RESULTS.read_text().splitlines()


if __name__ == "__main__":
    main()
