"""A master follows a folder of changes, in a process of its own.

python rebuild_script.py <folder> <most keys that are merged>
"""

from __future__ import annotations

import sys
from pathlib import Path

import semistream as ss
from semistream.spark.sync import sync as module

FEED = "id long, value string, _change_type string, _commit_version long"


def main(folder: Path, most: int) -> None:
    """Follow until there is no more, and print the master's version."""
    module._MOST_MERGED = most  # type: ignore[misc]
    spark = ss.local_session(2, "1g", **{"spark.sql.shuffle.partitions": "2"})
    changes = spark.readStream.schema(FEED).json(str(folder / "feed"))
    running: ss.Sync = ss.MasterTable.open(folder / "master").sync(
        changes, checkpoint=folder / "checkpoint", trigger="availableNow"
    )
    running.await_termination()
    print(running.status().version)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
