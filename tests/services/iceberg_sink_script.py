"""Kafka to an Iceberg table, in a process of its own.

python iceberg_sink_script.py FOLDER SERVER TOPIC
"""

from __future__ import annotations

import sys
from pathlib import Path

import semistream as ss
from tests.services.jars import jar_files

LAKE = "spark.sql.catalog.lake"


def main(folder: Path, server: str, topic: str) -> None:
    """Run the pipeline until the topic has no more."""
    spark = ss.local_session(
        2,
        "1g",
        log=folder / "spark.log",
        connectors=["kafka", "iceberg"],
        **{
            "spark.jars": jar_files("kafka-connector-4.1"),
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            LAKE: "org.apache.iceberg.spark.SparkCatalog",
            f"{LAKE}.type": "hadoop",
            f"{LAKE}.warehouse": f"file://{folder}/lake",
        },
    )
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", server)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    stream = reader.option("maxOffsetsPerTrigger", "1500").load()
    pipeline = ss.Pipeline(
        ss.parsed(stream, "sale string, product_id long, quantity int"),
        folder / "products.master",
        on="product_id",
        memory="4MB",
        sink=ss.IcebergSink("lake.shop.sales"),
        rejected=folder / "rejected",
        checkpoint=folder / "checkpoint",
        trigger="availableNow",
    )
    pipeline.start().await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
