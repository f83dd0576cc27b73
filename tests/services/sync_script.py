"""Masters follow topics, one after the other, in a process of its own.

python sync_script.py <server> <folder> debezium=<topic> compacted=<topic>
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import semistream as ss
from tests.services.goods import SCHEMA
from tests.services.jars import jar_files

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def main(server: str, folder: Path, feeds: list[str]) -> None:
    """Follow each topic until it has no more, and print how far the master has come."""
    jars = {"spark.jars": jar_files("kafka-connector")}
    spark = ss.local_session(2, "1g", connectors=["kafka"], **jars, **SETTINGS)
    for feed in feeds:
        name, _, topic = feed.partition("=")
        stream = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", server)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 1500)
            .load()
        )
        if name == "debezium":
            changes = ss.parsed(stream, SCHEMA)
        else:
            changes = ss.parsed(stream, "name string, price double", key="id long")
        running: ss.Sync = ss.MasterTable.open(folder / name).sync(
            changes, checkpoint=folder / f"{name}.checkpoint", trigger="availableNow"
        )
        running.await_termination(300)
        print(json.dumps(asdict(running.status())))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
