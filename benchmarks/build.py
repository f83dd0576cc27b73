"""Building a master table that fits in no process: time, and the memory that the processes took.

    python benchmarks/build.py [--rows 100000000] [--cores 2] [--memory 4g] [--folder DIR]

R is made by Spark, `rows` rows of about 120 bytes in no order, and built with a driver of `memory`,
which in local mode is all that Spark has. Written to the folder, which needs three times R's size:
Spark's shuffle, the pages, and room. The peak of each process is that of its resident set.

Writes a JSON line to benchmarks/results/build.jsonl.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import semistream as ss
from results import machine, write_results

RESULTS = Path(__file__).parent / "results" / "build.jsonl"


class Peaks(threading.Thread):
    """Looks at the resident sets of this process and those below it, once a second."""

    def __init__(self) -> None:
        """Not looking yet."""
        super().__init__(daemon=True)
        self.by_name: dict[str, int] = {}
        self.together = 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Look until `end`."""
        while not self._ended.wait(1.0):
            sizes = list(_below(Path("/proc/self").resolve().name))
            self.together = max(self.together, sum(size for _, size in sizes))
            for name, size in sizes:
                self.by_name[name] = max(self.by_name.get(name, 0), size)

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()


def _below(root: str) -> list[tuple[str, int]]:
    """Names and resident bytes of a process and all that descend from it."""
    parents: dict[str, str] = {}
    told: dict[str, tuple[str, int]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except (FileNotFoundError, ProcessLookupError):
            continue
        number = status.parent.name
        parents[number] = lines["PPid"].strip()
        told[number] = lines["Name"].strip(), int(lines.get("VmRSS", "0").split()[0]) * 1024

    def descends(number: str) -> bool:
        while number not in ("0", "", root):
            number = parents.get(number, "")
        return number == root

    return [found for number, found in told.items() if descends(number)]


def main() -> None:
    """Build, open, look one key up, and say what it took."""
    args = arguments()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        settings = {"spark.local.dir": f"{name}/spark", "spark.ui.showConsoleProgress": "false"}
        spark = ss.local_session(cores=str(args.cores), memory=args.memory, **settings)
        rows = spark.range(args.rows).selectExpr(
            f"(id * 7919 + 13) % {args.rows} AS product_id",
            "concat('product ', sha1(string(id)), ' of ', string(id)) AS name",
            "lpad(string(id), 13, '2') AS barcode",
            "cast(id % 5000 AS int) AS supplier",
            "cast(id % 400 AS int) AS category",
            "cast(rand(7) * 10000 AS decimal(10, 2)) AS price",
            "cast(id % 90 AS double) AS weight",
        )
        peaks = Peaks()
        peaks.start()
        started = time.perf_counter()
        master = ss.MasterTable.build(
            rows, f"{name}/r", key="product_id", progress=PrintedProgress()
        )
        seconds = time.perf_counter() - started
        peaks.end()
        assert master.row_count == args.rows
        size = int(master.pages.length.sum())
        print(master.describe())
        print(f"built in {seconds:,.0f} s: {args.rows / seconds:,.0f} rows/s, {size:,} bytes")
        print(f"peaks: {', '.join(f'{n} {s >> 20:,} MiB' for n, s in peaks.by_name.items())}")
        spark.stop()
    line: dict[str, Any] = {"seconds": seconds, "bytes": size, "pages": master.page_count}
    line |= {"peaks": peaks.by_name, "together": peaks.together, "parameters": vars(args)}
    write_results(RESULTS, [line], machine(ss.__version__))


class PrintedProgress:
    """A line now and then."""

    def __init__(self) -> None:
        """None yet."""
        self._last = 0.0

    def __call__(self, progress: object) -> None:
        """Print it, if the last is half a minute ago."""
        if time.monotonic() - self._last > 30:
            self._last = time.monotonic()
            print(progress, flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="4g")
    parser.add_argument("--folder", default=None, help="where to put R")
    return parser.parse_args()


if __name__ == "__main__":
    main()
