"""A master in an object store: through the cache, without it, and with a request per look-up.

    python benchmarks/object_store.py [--rows 500000] [--tuples 50000] [--latency 0.02] …

A server of the S3 protocol runs on loopback; each of its answers takes `latency` seconds longer.
The ways take turns in one process, a task of so many tuples each, with warm engines:

    local           the same master on a local disk, in the page cache
    cache, first    copies on a local disk, none of which is there yet
    cache           copies on a local disk, all there
    no cache        reads from the store, many under way at a time
    one by one      a request for each look-up, of `--few` tuples only

Writes one JSON line per way to benchmarks/results/object_store.jsonl.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

import semistream as ss
from results import machine, write_results
from semistream.workload import ZipfKeys, products, sales

RESULTS = Path(__file__).parent / "results"
SERVER = Path(__file__).parents[1] / "tests" / "services" / "s3_server.py"
SEED = 5


@contextmanager
def object_store(latency: float) -> Iterator[str]:
    """A bucket in a server of its own; the URI of a master in it, to be formatted with a name."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    os.environ.update(keys | {"AWS_EC2_METADATA_DISABLED": "true"})
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(port), str(latency)], stderr=subprocess.DEVNULL
    )
    try:
        options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        filesystem, _ = pafs.FileSystem.from_uri(f"s3://x?{options}&allow_bucket_creation=true")
        filesystem.create_dir("bench")
        yield f"s3://bench/{{}}.master?{options}"
    finally:
        server.kill()
        server.wait()


def engine(master: ss.MasterTable, memory: int, algorithm: str = "hybridjoin") -> ss.Engine:
    """What is measured: the joins differ in the place of their pages only."""
    return ss.engine(master, on="product_id", how="left", memory=memory, algorithm=algorithm)


def seconds(joining: ss.Engine, stream: list[pa.RecordBatch]) -> float:
    """How long one task takes."""
    started = time.perf_counter()
    rows = sum(batch.num_rows for batch in joining.run(iter(stream)))
    assert rows == sum(batch.num_rows for batch in stream)
    return time.perf_counter() - started


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--tuples", type=int, default=50_000)
    parser.add_argument("--few", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.05, help="memory over bytes of R")
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="semistream-bench-"))
    table = products(given.rows, seed=SEED)
    with object_store(given.latency) as uri:
        near = ss.MasterTable.from_arrow(table, folder / "r.master", key="product_id")
        far = ss.MasterTable.from_arrow(table, uri.format("r"), key="product_id")
        memory = int(given.share * sum(near.pages.length))
        keys = ZipfKeys(given.rows, exponent=1.0, seed=SEED)
        stream = list(sales(given.tuples, keys, given.rows, batch_rows=10_000))
        few = [stream[0].slice(0, given.few)]
        cached = far.cached(folder / "cache", "1GB")
        first = seconds(engine(cached, memory), stream)
        ways = {
            "local": (engine(near, memory), stream),
            "cache": (engine(cached, memory), stream),
            "no cache": (engine(far, memory), stream),
            "one by one": (engine(far, memory, "inlj"), few),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(given.repeat + 1):
            for way, (joining, tuples) in ways.items():
                spent = seconds(joining, tuples)
                if turn or way == "one by one":
                    taken[way].append(spent / sum(batch.num_rows for batch in tuples))
        rates = {way: 1 / statistics.median(times) for way, times in taken.items()}
        rates["cache, first"] = given.tuples / first
    shutil.rmtree(folder)
    settings = {name: getattr(given, name) for name in ("rows", "tuples", "share", "latency")}
    for way, rate in rates.items():
        print(f"{way:>14} {rate:>12,.0f} tuples/s {rate / rates['local']:>8.3f} of local")
    print(f"no cache / one by one: {rates['no cache'] / rates['one by one']:.1f}")
    lines = [
        {"way": way, "tuples_per_second": round(rate, 1), "of_local": rate / rates["local"]}
        for way, rate in rates.items()
    ]
    write_results(
        RESULTS / "object_store.jsonl",
        [{**line, **settings, "seed": SEED} for line in lines],
        machine(ss.__version__),
    )


if __name__ == "__main__":
    main()
