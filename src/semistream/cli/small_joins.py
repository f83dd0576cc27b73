"""`python -m semistream.cli.small_joins IO KEY…`: joins whose only purpose is what they compile.

Kernels are compiled when a join first needs them, for the types that it has. These joins are of the
kinds that algorithm="auto" chooses, and ranges. Prints the name of each kernel when it has been
compiled.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numba.core import event

from semistream.algorithms import Engine, fixed_engine
from semistream.algorithms.registry import AUTO
from semistream.cost.micro_batches import micro_batch_engine
from semistream.relation import MasterTable
from semistream.scanning.conditions import between
from semistream.scanning.engine import scan_engine
from semistream.workload import products

_JOINS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    (AUTO, {}),
    ("chybridjoin", {}),
    ("chybridjoin", {"front_percent": 50}),
    ("inlj", {}),
)
_ROWS: Final = 20_000
_TUPLES: Final = 5_000
_LOOKED_UP: Final = 200
"""Tuples for INLJ, which may read a page for each of them."""
_MEMORY: Final = 1 << 20


def _small_joins(io: str, keys: list[str]) -> None:
    """Join a few tuples with a small master table for each kind of key."""
    table = products(_ROWS, seed=1)
    # A few keys come often and most come seldom, so that every stage has something to do.
    drawn = np.random.default_rng(1).zipf(1.2, _TUPLES) * 7919 % (_ROWS + _ROWS // 10)
    for kind in keys:
        ids = table["product_id"] if kind == "integer" else table["product_id"].cast(pa.string())
        stream = pa.array(drawn) if kind == "integer" else pa.array(drawn.astype(str))
        batch = pa.record_batch({"product_id": stream, "quantity": np.arange(_TUPLES)})
        keyed = table.set_column(0, "product_id", ids)
        with tempfile.TemporaryDirectory(prefix="semistream-") as folder:
            master = MasterTable.from_arrow(keyed, f"{folder}/master", key="product_id")
            terms: dict[str, Any] = {"on": "product_id", "how": "left", "memory": _MEMORY, "io": io}
            for algorithm, options in _JOINS:
                if algorithm == AUTO:
                    engine: Engine = micro_batch_engine(master, **terms)
                else:
                    engine = fixed_engine(master, algorithm=algorithm, **terms, **options)
                few = batch.slice(0, _LOOKED_UP) if algorithm == "inlj" else batch
                for _ in engine.run(iter([few] * 3)):
                    pass
                engine.close()
            terms["on"] = between(*["product_id"] * 3)
            with scan_engine(master, **terms) as scan:
                for _ in scan.run([batch]):
                    pass


def _tell_compiled() -> None:
    """From now on, print the name of every kernel that has been compiled."""

    class Teller(event.Listener):
        def on_start(self, told: event.Event) -> None:
            pass

        def on_end(self, told: event.Event) -> None:
            function = told.data["dispatcher"].py_func
            if function.__module__.startswith("semistream"):
                print(function.__name__, flush=True)

    register: Any = event.register
    register("numba:compile", Teller())


if __name__ == "__main__":
    _tell_compiled()
    _small_joins(sys.argv[1], sys.argv[2:])
