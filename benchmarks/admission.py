"""The admission rules of the front stage on the same workloads, by counters.

    python benchmarks/admission.py [--rows 200000] [--tuples 800000] [--share 0.10] …
    python benchmarks/admission.py --table

CHYBRIDJOIN with each rule, and HYBRIDJOIN as what they are measured against. R has `rows` rows
of about 120 bytes; S has tuples of about 20 bytes whose keys follow Zipf's law, scattered over
R; the budget is a share of R's bytes on disk. In the workload "moving" the exponent is 1 and at
half of the stream all hot keys are exchanged for others. Counted is the second half of the
stream (for "moving" that is the half after the move), the hit ratio of the last quarter beside
it, up to the last arrival: a real stream goes on, so the pages read afterwards for what still
waits do not count. Nothing is timed and all is seeded: machine and load make no difference.

Writes one JSON line per workload and rule to benchmarks/results/admission.jsonl; `--table`
prints those as a Markdown table and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

import semistream as ss
from results import machine, write_results
from semistream.metrics import Metrics
from semistream.parts.admission import ADMISSIONS
from semistream.workload import ZipfKeys, products, sales

RESULTS = Path(__file__).parent / "results" / "admission.jsonl"
NO_RULE = "none"
WORKLOADS = {
    "Zipf 0.5": 0.5,
    "Zipf 0.8": 0.8,
    "Zipf 1.0": 1.0,
    "Zipf 1.2": 1.2,
    "moving": 1.0,
    "uniform": 0.0,
}
"""The exponents."""


def stream(workload: str, args: argparse.Namespace) -> list[pa.RecordBatch]:
    """The sales of one workload; a multiple of four batches."""
    exponent, half = WORKLOADS[workload], args.tuples // 2
    seeds = (args.seed, args.seed + 1) if workload == "moving" else (args.seed,)
    parts = (
        sales(args.tuples // len(seeds), keys, args.rows, batch_rows=half // 40)
        for keys in (ZipfKeys(args.rows, exponent, seed=seed) for seed in seeds)
    )
    return list(chain.from_iterable(parts))


def measured(engine: ss.Engine, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    """One run, counted from half and from three quarters of the stream on to its last tuple."""
    seen: list[Metrics] = []
    shares: list[float] = []

    def feed() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number in (len(batches) // 2, len(batches) * 3 // 4):
                seen.append(engine.metrics())
            yield batch
        seen.append(engine.metrics())
        shares.append(engine.memory().get("front stage", 0) / engine.memory()["budget"])

    rows = sum(batch.num_rows for batch in engine.run(feed()))
    half, last, end = seen
    assert rows == end.arrived, f"{rows} result rows for {end.arrived} tuples"
    tuples = end.arrived - half.arrived
    return {
        "hit_ratio": (end.front_hits - half.front_hits) / tuples,
        "hit_ratio_last_quarter": (end.front_hits - last.front_hits) / (end.arrived - last.arrived),
        "pages_per_1000": (end.pages_read - half.pages_read) / tuples * 1000,
        "front_share": shares[0],
        "peak": engine.metrics().peak_memory,
        "budget": end.budget,
    }


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All workloads with all rules."""
    lines = []
    table = products(args.rows, seed=args.seed)
    with tempfile.TemporaryDirectory() as folder:
        master = ss.MasterTable.from_arrow(
            table, Path(folder) / "products.master", key="product_id", page_bytes=args.page_bytes
        )
        size = int(master.pages.length.sum())
        parameters = vars(args) | {"master_bytes": size}
        for workload in WORKLOADS:
            batches = stream(workload, args)
            for rule in (NO_RULE, *ADMISSIONS):
                options: dict[str, Any] = {} if rule == NO_RULE else {"admission": rule}
                algorithm = "hybridjoin" if rule == NO_RULE else "chybridjoin"
                engine = ss.engine(
                    master,
                    algorithm=algorithm,
                    on="product_id",
                    memory=int(size * args.share),
                    **options,
                )
                found = measured(engine, batches)
                print(
                    f"{workload:<10}{rule:<9}hits {found['hit_ratio']:.3f}  pages/1000 "
                    f"{found['pages_per_1000']:.2f}  front stage {found['front_share']:.1%}",
                    flush=True,
                )
                line = {"workload": workload, "rule": rule, "algorithm": algorithm}
                lines.append(line | found | {"seed": args.seed, "parameters": parameters})
    return lines


def markdown(lines: list[dict[str, Any]]) -> str:
    """The results as a table: a line per workload and rule."""
    rows = [
        "| stream | rule | hits | last quarter | pages per 1,000 | of HYBRIDJOIN's | memory |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    plain = {x["workload"]: x["pages_per_1000"] for x in lines if x["rule"] == NO_RULE}
    for line in lines:
        pages = line["pages_per_1000"]
        shares = [line["hit_ratio"], line["hit_ratio_last_quarter"], line["front_share"]]
        hits, last, front = (f"{share:.1%}" for share in shares)
        if line["rule"] == NO_RULE:
            hits = last = front = "–"
        name = line["workload"] if line["rule"] == NO_RULE else ""
        ratio = f"{pages / plain[line['workload']]:.2f}"
        rows.append(
            f"| {name} | {line['rule']} | {hits} | {last} | {pages:.1f} | {ratio} | {front} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Run and write, or print what was written."""
    args = arguments()
    if args.table:
        print(markdown([json.loads(line) for line in RESULTS.read_text().splitlines()]))
        return
    del args.table
    write_results(RESULTS, run(args), machine(ss.__version__))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--tuples", type=int, default=800_000)
    parser.add_argument("--share", type=float, default=0.10)
    parser.add_argument("--page-bytes", type=int, default=16384)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--table", action="store_true", help="print the table of the last run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
