"""Two pipelines that share a key table, in a process that is killed.

python keys_script.py <folder>
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import semistream as ss
from semistream.spark.session import local_session
from tests.recovery.shop_script import SETTINGS


def main(folder: Path) -> None:
    """Run both to their end."""
    # A task that dies is tried again.
    spark = local_session(2, "1g", **SETTINGS, **{"spark.master": "local[2,3]"})
    reader = spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1)
    keys = ss.MasterTable.open(folder / "keys")
    running = [
        ss.Pipeline(
            reader.parquet(str(folder / "sales")),
            folder / "goods.master",
            on={"id": "id"},
            steps=[partial(ss.surrogate_keys, keys=keys, on="id", memory="2MB", keep=0.0)],
            sink=str(folder / name),
            checkpoint=folder / f"checkpoint-{name}",
            memory="1MB",
            trigger="availableNow",
        ).start()
        for name in ("one", "two")
    ]
    for pipeline in running:
        pipeline.await_termination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
