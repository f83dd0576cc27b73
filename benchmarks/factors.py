"""The cost factors that are shipped: measured here, through the page cache and past it.

    python benchmarks/factors.py [--io buffered direct] [--rounds 5] [--folder FOLDER]
    python benchmarks/factors.py --busy

Writes src/semistream/cost/shipped_factors.json, with two digits: more would be noise. Run it after
a change of what an operation costs, and look at `git diff`: a factor that moves by more than its
spread has a reason.

Factors of pages in memory are CPU time, and other work hardly changes them. Those of direct I/O
are times by the clock, for which the machine must be idle. If it is not, `--busy` measures single
direct reads and takes everything else from the factors of pages in memory. Look-ups read two
partitions at a time, so theirs cost half.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import semistream as ss
from results import machine
from semistream.cost import calibration
from semistream.cost.calibration import Calibration
from semistream.cost.read_costs import read_costs

SHIPPED = Path(calibration.__file__).with_name("shipped_factors.json")


def main() -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--io", nargs="+", default=["buffered", "direct"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk that is measured")
    parser.add_argument("--busy", action="store_true", help="direct I/O from single reads")
    args = parser.parse_args()
    shipped = json.loads(SHIPPED.read_text("utf-8"))
    for io in ["buffered"] if args.busy else args.io:
        found = calibration.calibrate(io, args.folder, rounds=args.rounds)
        before = shipped[io]["factors"]
        for name, price in asdict(found.factors).items():
            if name == "overlap":
                continue
            print(
                f"{io:<9}{name:<19}{before.get(name, 0) * 1e6:12.4f} ->{price * 1e6:12.4f} µs"
                f"  ± {found.spread[name]:.0%}"
            )
        print(f"{io}: the factors miss the runs by {found.unexplained:.0%} on average")
        shipped[io] = content(found, args.rounds, before)
    if args.busy:
        shipped["direct"] = from_reads(shipped["buffered"]["factors"], args.folder)
    SHIPPED.write_text(json.dumps(shipped, indent=2) + "\n", "utf-8")


def from_reads(in_memory: dict[str, float], folder: Path | None) -> dict[str, Any]:
    """Factors of direct I/O: those of pages in memory, with the prices of single reads."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="semistream-") as name:
        masters = calibration.calibration_masters(Path(name))
        reads = [read for read in read_costs(masters["key"]) if read.io == "direct"]
    prices: dict[bool, tuple[float, float]] = {}
    for sequential in (False, True):
        some = [read for read in reads if read.sequential == sequential]
        byte, seek = np.polyfit([read.size for read in some], [read.median for read in some], 1)
        prices[sequential] = max(seek, 1e-6), max(byte, 1e-11)
    (seek, byte), (next_to, _) = prices[False], prices[True]
    print(
        f"direct: a read {seek * 1e6:.0f} µs, in a row {next_to * 1e6:.0f}; {byte * 1e9:.2f} ns/B"
    )
    read = {
        "partition_read": seek,
        "sequential_read": next_to,
        "batched_read": seek / 2,
        "byte_read": byte,
        "batched_byte": byte / 2,
        "index_page_read": seek + in_memory["index_page_read"],
    }
    here = machine(ss.__version__)
    source = f"{here['cores']} cores of {here['cpu']}, local SSD, single direct reads"
    return {
        "source": f"{source}, the rest as with pages in memory, {time.strftime('%Y-%m-%d')}",
        "factors": in_memory | {name: float(f"{price:.2g}") for name, price in read.items()},
    }


def content(found: Calibration, rounds: int, before: dict[str, float]) -> dict[str, Any]:
    """What is kept of a calibration."""
    here = machine(ss.__version__)
    way = "direct I/O, local SSD" if found.io == "direct" else "CPU time, pages in memory"
    source = f"{here['cores']} cores of {here['cpu']}, {way}, medians of {rounds} runs each"
    # A price of 0 would stay so: later calibrations are pulled to these.
    least = {name: price / 10 for name, price in before.items()}
    factors = {
        name: float(f"{max(price, least.get(name, 0.0)):.2g}")
        for name, price in asdict(found.factors).items()
    }
    return {"source": f"{source}, {time.strftime('%Y-%m-%d')}", "factors": factors}


if __name__ == "__main__":
    main()
