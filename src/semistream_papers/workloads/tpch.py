"""TPC-H customers as master data and orders as the stream.

`tpchgen-cli` (on PyPI, in the extra `reproduce`) generates both at any scale factor: 150,000
customers at factor 1, and ten orders for each. Its orders are spread evenly over two thirds of the
customers. For a skewed stream each order gets another customer, drawn by a Zipf law over all of
them, with the frequent ones scattered.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.errors import OptionError
from semistream.workload.zipf import ZipfKeys, scattered

__all__ = ["generate", "read_customers", "read_orders"]

_BATCH_ROWS = 1 << 16


def generate(folder: str | Path, scale: float) -> Path:
    """Write customers and orders at a scale factor as Parquet files; returns the folder.

    What is there already is left as it is.
    """
    if not scale > 0:
        raise OptionError(f"scale is {scale}; give a scale factor of more than 0.")
    target = Path(folder) / f"tpch-{scale:g}"
    if not (target / "orders.parquet").exists():
        target.mkdir(parents=True, exist_ok=True)
        command = [_program(), "parquet", "-s", f"{scale:g}", "--output-dir", str(target)]
        command += ["--tables", "customer,orders"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise OptionError(f"tpchgen-cli failed: {ended.stderr.strip()[-500:]}")
    return target


def read_customers(folder: Path) -> Iterator[pa.RecordBatch]:
    """The customers of a generated folder; their key is `c_custkey`, from 1."""
    yield from _batches(folder / "customer.parquet")


def read_orders(
    folder: Path, exponent: float | None = None, seed: int = 0
) -> Iterator[pa.RecordBatch]:
    """The orders, as generated or with customers drawn by a Zipf law of this exponent."""
    customers = pq.ParquetFile(folder / "customer.parquet").metadata.num_rows
    keys = None if exponent is None else ZipfKeys(customers, exponent, seed)
    for batch in _batches(folder / "orders.parquet"):
        if keys is not None:
            drawn = scattered(keys.ranks(batch.num_rows), customers, seed) + 1
            place = batch.schema.get_field_index("o_custkey")
            batch = batch.set_column(place, batch.schema.field(place), pa.array(drawn))
        yield batch


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(_BATCH_ROWS)


def _program() -> str:
    """The generator beside this interpreter, or on the PATH."""
    beside = Path(sys.executable).with_name("tpchgen-cli")
    found = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if found is None:
        raise OptionError(
            'tpchgen-cli was not found. Install it: pip install "semistream[reproduce]".'
        )
    return found
