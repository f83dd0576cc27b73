"""Two pipelines that share a key table, in a process that is killed; one of them joins a star.

python keys_script.py <folder>
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import semistream as ss
from semistream.spark.session import local_session
from tests.recovery.shop_script import SETTINGS


def main(folder: Path) -> None:
    """Run both to their end."""
    # A task that dies is tried again.
    spark = local_session(2, "1g", **SETTINGS, **{"spark.master": "local[2,3]"})
    reader = spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1)
    keys = ss.MasterTable.open(folder / "keys")
    kinds = ss.MasterTable.open(folder / "kinds.master")
    goods = ss.MasterTable.open(folder / "goods.master")
    joins: dict[str, dict[str, Any]] = {
        "one": {"master": goods, "on": {"id": "id"}},
        "two": {
            "master": [ss.Lookup(goods, on="id", how="left"), ss.Lookup(kinds, on="id")],
            "unmatched": str(folder / "two-unmatched"),
        },
    }
    running = [
        ss.Pipeline(
            reader.parquet(str(folder / "sales")),
            steps=[partial(ss.surrogate_keys, keys=keys, on="id", memory="2MB", keep=0.0)],
            sink=str(folder / name),
            checkpoint=folder / f"checkpoint-{name}",
            memory="1MB",
            trigger="availableNow",
            **terms,
        ).start()
        for name, terms in joins.items()
    ]
    for pipeline in running:
        pipeline.await_termination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
