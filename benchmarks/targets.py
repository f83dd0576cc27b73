"""The speed targets: each ratio measured side by side, printed beside its target.

    python benchmarks/targets.py [--only 5,7] [--rows 5000000] [--large]

| row | measure | target |
| --- | --- | --- |
| 1 | engine, in place, R 5 million, memory 5 % of R, left join: a task of 50,000 tuples | ≤ 20 ms |
| 2 | engine, in place, 1, 5 and 10 % (R 5 million) and 5 % (R 500,000) / all of R in memory | 1.5 |
| 3 | engine, direct I/O, 10 % (R 2 million) and 1 % (R 5 million) / all of R in memory | 1.6, 0.6 |
| 4 | Spark, R 5 million, 100,000 a batch / an identity that adds columns as wide as R's | 0.75 |
| 5 | the same / LMDB, RocksDB and DuckDB look-ups in `mapInArrow`; the best of them counts | 1.6 |
| 6 | the same / Spark's stream-static join, R 5 million; with `--large` 20 million too | 20, 60 |
| 7 | Spark, R 500,000, 50,000 and 100,000 a batch / stream-static and broadcast join | 1.5 |
| 8 | Spark, R 500,000, 3,000 a batch: our time over an identity's, plain and as wide | ≤ 1.4 |
| 9 | engine, string and composite keys / integer keys, in place and direct I/O | 0.7 |

"a / b" is a's rate over b's. R is a shop's products, about 120 bytes a row; the stream is sales
with Zipf keys of exponent 1. "In place" is buffered I/O with R in the page cache. All of R in
memory is searched with NumPy and gathered with Arrow, as in engine.py. On Spark whole triggers are
timed, ss.join has 5 % of R as memory per task, and R is in the page cache for all ways. The ways
take turns for some rounds; medians are compared. Before that, rows and checksums of all ways are
compared once. `--rows` is R's size where the table says 5 million; the other sizes follow in
proportion.

With rows 4 and 5 together it also says, for each peer, what a join that takes no time would come
to: the identity of row 4 over the peer. No target above that can be met.

Row 5 needs the extra "bench": pip install 'semistream[bench]'. Other scripts have more targets:
pipeline.py (pipelines against hand-written queries), warm.py (hit ratios of neighbouring batches),
steps.py (HYBRIDJOIN and MESHJOIN with the papers' sizes), worker_memory.py, cold_start.py and
micro_batches.py (sizes that "auto" chooses).

Appends a JSON line per finding to benchmarks/results/targets.jsonl.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import semistream as ss
from measures.findings import Finding, print_table, say
from measures.on_engine import EngineMeasures
from measures.on_spark import SparkMeasures
from results import machine, write_results

BENCHMARKS = Path(__file__).parent
ROWS = range(1, 10)
ON_SPARK = {4, 5, 6, 7, 8}
PACKAGES = ("pyspark", "lmdb", "rocksdict", "duckdb")


def main() -> None:
    """Measure what is wanted; print and append the findings."""
    args = arguments()
    started = time.perf_counter()
    findings = []
    for part in (on_engine, on_spark):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            findings += list(part(args, Path(folder)))
    say(f"took {(time.perf_counter() - started) / 60:.1f} minutes")
    print_table(findings)
    where = machine(ss.__version__) | versions()
    path = BENCHMARKS / "results" / "targets.jsonl"
    write_results(path, [finding.line() for finding in findings], where, append=True)


def on_engine(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    """Rows without Spark."""
    measures = EngineMeasures(args.rows, args.rounds, args.seed, folder, args.algorithm)
    return measures.findings(args.only)


def on_spark(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    """Rows on Spark, if any is wanted."""
    if not args.only & ON_SPARK:
        return
    spark = ss.local_session(
        cores=str(args.cores),
        memory="4g",
        **{
            "spark.sql.shuffle.partitions": str(args.cores),
            "spark.sql.files.openCostInBytes": str(1 << 20),
        },
    )
    measures = SparkMeasures(
        spark, args.rows, args.rounds, args.seed, folder, args.share, args.cores
    )
    yield from measures.findings(args.only, args.large)
    spark.stop()


def versions() -> dict[str, str]:
    """Versions of what is compared."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=rows, default=set(ROWS), help="rows such as 5,7")
    parser.add_argument("--rows", type=int, default=5_000_000, help="of the large R")
    parser.add_argument("--large", action="store_true", help="row 6 with R four times as large too")
    parser.add_argument("--rounds", type=int, default=3, help="that count; one more warms up")
    parser.add_argument("--algorithm", default="auto", help="of the engine's rows")
    parser.add_argument("--share", type=float, default=0.05, help="of R as memory, on Spark")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--folder", default=None, help="where to put R; its disk is measured")
    args = parser.parse_args()
    missing = [name for name in ("lmdb", "rocksdict", "duckdb") if find_spec(name) is None]
    if 5 in args.only and missing:
        parser.error(
            f"row 5 needs {', '.join(missing)}: pip install 'semistream[bench]', or leave the row "
            "out: --only 1,2,3,4,6,7,8,9"
        )
    return args


def rows(text: str) -> set[int]:
    """The row numbers in a text such as "5,7"."""
    chosen = {int(number) for number in text.split(",")}
    if not chosen <= set(ROWS):
        raise argparse.ArgumentTypeError(f"rows are {ROWS[0]} to {ROWS[-1]}, not {text}")
    return chosen


if __name__ == "__main__":
    main()
