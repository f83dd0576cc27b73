"""What a partition costs by the clock: each algorithm with the papers' sizes, side by side.

    python benchmarks/steps.py [--exponents 0 0.5 1] [--algorithms hybridjoin meshjoin …] …

R, memory and partitions are those of the HYBRIDJOIN paper (2 million rows of 120 bytes, 50 MB; a
partition is a page of 543 rows, or 11 pages for those that scan), at the scale "laptop": R and
the waiting tuples are an eighth, partitions keep their rows. The stream has Zipf-distributed keys
and is made beforehand. A run joins all of it, also what waits at the end. The ways take turns, and
medians are reported: by the clock, and as CPU time of the process, which says more on a machine
that has other work. The Python share is that of a further run under a profiler, which makes Python
look dearer than it is: all time that is not in kernels, NumPy, Arrow or waiting.

Writes one JSON line per algorithm and exponent to benchmarks/results/steps.jsonl.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import semistream as ss
from results import machine, write_results
from semistream.algorithms import Engine
from semistream_papers.figures.hybrid import BASE
from semistream_papers.runs.inputs import stored_master, tuples_of
from semistream_papers.runs.setting import Setting, scaled
from semistream_papers.runs.sized_engine import sized_engine

RESULTS = Path(__file__).parent / "results"
ALGORITHMS = (
    "hybridjoin",
    "meshjoin",
    "rmeshjoin",
    "xhybridjoin",
    "oxhybridjoin",
    "chybridjoin",
    "cmeshjoin",
)
PINNED_ROWS = 543
"""One partition, as the papers pin."""


def setting_of(algorithm: str, exponent: float, seed: int) -> Setting:
    """The papers' sizes for an algorithm."""
    rows = BASE.scan_rows if "meshjoin" in algorithm else BASE.partition_rows
    sized = BASE.with_(algorithm=algorithm, exponent=exponent, partition_rows=rows, seed=seed)
    return scaled(sized.with_(pinned_rows=PINNED_ROWS), "laptop")


class Way:
    """One algorithm on one stream, and the times that it took."""

    def __init__(self, setting: Setting, folder: Path, tuples: int, io: str) -> None:
        """Make R, unless it is there, and the stream."""
        source = tuples_of(setting)
        self.setting = setting
        self.stream = [source.batch(8192) for _ in range(-(-tuples // 8192))]
        self.engine: Engine = sized_engine(
            setting, stored_master(setting, folder), time.perf_counter, io
        )
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []

    def run(self) -> None:
        """Join the stream once, timed."""
        cpu, clock = time.process_time(), time.perf_counter()
        rows = sum(batch.num_rows for batch in self.engine.run(self.stream))
        self.seconds.append(time.perf_counter() - clock)
        self.cpu_seconds.append(time.process_time() - cpu)
        assert rows == self.tuples, f"{self.setting} gave {rows} rows, not {self.tuples}"

    @property
    def tuples(self) -> int:
        """Tuples of the stream; each has one row in R."""
        return sum(batch.num_rows for batch in self.stream)

    def python_share(self) -> float:
        """The part of a run that is Python's."""
        profile = cProfile.Profile()
        profile.enable()
        for _ in self.engine.run(self.stream):
            pass
        profile.disable()
        found: Any = pstats.Stats(profile)
        total = sum(each[2] for each in found.stats.values())
        compiled = sum(each[2] for where, each in found.stats.items() if _is_compiled(where))
        return float(1 - compiled / total)

    def line(self) -> dict[str, Any]:
        """What was found, for the file of results."""
        seconds, cpu = statistics.median(self.seconds), statistics.median(self.cpu_seconds)
        metrics = self.engine.metrics()
        return {
            "algorithm": self.setting.algorithm,
            "exponent": self.setting.exponent,
            "rate": self.tuples / seconds,
            "cpu_rate": self.tuples / cpu,
            "us_per_partition": 1e6 * seconds / metrics.partitions_read,
            "cpu_us_per_partition": 1e6 * cpu / metrics.partitions_read,
            "python_share": self.python_share(),
            "tuples_per_partition": self.tuples / metrics.partitions_read,
            "pages_per_partition": metrics.pages_read / metrics.partitions_read,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "peak": metrics.peak_memory,
            "budget": metrics.budget,
        }


def _is_compiled(where: tuple[str, int, str]) -> bool:
    """Whether a line of a profile is of compiled code: kernels, and whatever is not Python."""
    file, _, name = where
    return "/kernels/" in file or file == "~" or (file.endswith("compute.py") and name == "take")


def main() -> None:
    """Run all ways in turns, print and write what a partition costs."""
    args = arguments()
    pa.set_cpu_count(1)
    lines = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for exponent in args.exponents:
            ways = [
                Way(setting_of(name, exponent, args.seed), Path(folder), args.tuples, args.io)
                for name in args.algorithms
            ]
            for way in ways:
                # Compiles kernels and warms the front stages.
                way.run()
                way.seconds.clear()
                way.cpu_seconds.clear()
            for _ in range(args.repeat):
                for way in ways:
                    way.run()
            given = {name: value for name, value in vars(args).items() if name != "folder"}
            found = [way.line() | {"parameters": given} for way in ways]
            report(exponent, found)
            lines += found
    write_results(RESULTS / "steps.jsonl", lines, machine(ss.__version__))


def report(exponent: float, lines: list[dict[str, Any]]) -> None:
    """Print the algorithms at one exponent, against MESHJOIN if it is there."""
    mesh = next((line for line in lines if line["algorithm"] == "meshjoin"), None)
    print(f"exponent {exponent:g}")
    print(
        f"{'':<14}{'tuples/s':>11}{'µs/partition':>14}{'CPU':>8}{'Python':>8}"
        f"{'tuples each':>13}{'of MESHJOIN':>13}{'by CPU':>8}"
    )
    for line in lines:
        ratios = ""
        if mesh is not None:
            line["of_meshjoin"] = line["rate"] / mesh["rate"]
            line["of_meshjoin_by_cpu"] = line["cpu_rate"] / mesh["cpu_rate"]
            ratios = f"{line['of_meshjoin']:>13.2f}{line['of_meshjoin_by_cpu']:>8.2f}"
        print(
            f"{line['algorithm']:<14}{line['rate']:>11,.0f}{line['us_per_partition']:>14,.0f}"
            f"{line['cpu_us_per_partition']:>8,.0f}{line['python_share']:>8.0%}"
            f"{line['tuples_per_partition']:>13,.0f}{ratios}"
        )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--exponents", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--tuples", type=int, default=600_000)
    parser.add_argument("--io", default="direct", choices=["direct", "unmapped"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=2007)
    parser.add_argument("--folder", help="where R is built")
    return parser.parse_args()


if __name__ == "__main__":
    main()
