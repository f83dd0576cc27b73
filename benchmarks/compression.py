"""Compressed pages: when do fewer bytes pay for the time it takes to decompress them?

    python benchmarks/compression.py [--rows 500000] [--tuples 50000] [--share 0.05] [--repeat 3]

The same R is built with each codec. Engines with direct I/O take turns in one process, a task of so
many uniform tuples each, on the disk as it is and on slower ones: there each read takes its bytes /
bandwidth longer. So does an object store, by far more.

Writes one JSON line per codec and disk to benchmarks/results/compression.jsonl.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import semistream as ss
from object_store import seconds
from results import machine, write_results
from semistream.relation.storage import LocalStorage, PageSource
from semistream.relation.storage.local import LocalSource
from semistream.workload import ZipfKeys, products, sales

RESULTS = Path(__file__).parent / "results"
CODECS = (None, "lz4", "zstd", "packed")
DISKS = (None, 500, 250, 125)
"""Megabytes per second; None for the disk as it is."""
SEED = 5


class SlowSource(LocalSource):
    """A file whose reads take their bytes / bandwidth longer."""

    def __init__(self, path: Path, direct: bool, per_second: float) -> None:
        super().__init__(path, direct)
        self._file, self.descriptor = self.descriptor, -1
        self._per_second = per_second

    def read_into(self, memory: memoryview, position: int) -> int:
        """Read, then wait."""
        got = os.preadv(self._file, [memory], position)
        time.sleep(got / self._per_second)
        return got

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class SlowStorage(LocalStorage):
    """A folder on a slow disk."""

    def __init__(self, root: Path, megabytes: float) -> None:
        super().__init__(root)
        self._per_second = megabytes * 1e6

    def open_pages(self, name: str, direct: bool) -> PageSource:
        """Open a page file for reading."""
        return SlowSource(self.path / name, direct, self._per_second)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--tuples", type=int, default=50_000)
    parser.add_argument("--share", type=float, default=0.05, help="memory over bytes of R")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="semistream-bench-"))
    table = products(given.rows, seed=SEED)
    keys = ZipfKeys(given.rows, exponent=0.0, seed=SEED)
    stream = list(sales(given.tuples, keys, given.rows, batch_rows=10_000))
    engines, stored = {}, {}
    for codec in CODECS:
        path = folder / f"{codec}.master"
        master = ss.MasterTable.from_arrow(table, path, key="product_id", compression=codec)
        memory = int(given.share * master.pages.length.sum())
        stored[codec] = master.pages.stored_bytes(0, master.page_count)
        for disk in DISKS:
            place = LocalStorage(path) if disk is None else SlowStorage(path, disk)
            there = ss.MasterTable(place, master.manifest)
            engines[codec, disk] = ss.engine(
                there,
                on="product_id",
                how="left",
                memory=memory,
                algorithm="hybridjoin",
                io="direct",
            )
    taken: dict[tuple[str | None, int | None], list[float]] = {case: [] for case in engines}
    for turn in range(given.repeat + 1):
        for case, joining in engines.items():
            spent = seconds(joining, stream)
            if turn:
                taken[case].append(spent)
    shutil.rmtree(folder)
    lines = []
    for disk in DISKS:
        plain = statistics.median(taken[None, disk])
        for codec in CODECS:
            spent = statistics.median(taken[codec, disk])
            share = stored[codec] / stored[None]
            name = "as it is" if disk is None else f"{disk} MB/s"
            print(
                f"{name:>10} {codec or 'none':>5} {share:6.0%} of the bytes "
                f"{given.tuples / spent:>12,.0f} tuples/s {plain / spent:6.2f} of uncompressed"
            )
            lines.append(
                {
                    "disk_megabytes_per_second": disk,
                    "codec": codec,
                    "bytes_share": share,
                    "seconds": spent,
                    "of_uncompressed": plain / spent,
                    **{name: getattr(given, name) for name in ("rows", "tuples", "share")},
                    "seed": SEED,
                }
            )
    write_results(RESULTS / "compression.jsonl", lines, machine(ss.__version__))


if __name__ == "__main__":
    main()
