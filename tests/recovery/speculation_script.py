"""A build whose slow tasks are copied by Spark's speculation; prints what became of it, as JSON.

python speculation_script.py FOLDER
"""

import json
import os
import sys
import time
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import semistream as ss
from semistream.spark import master_builder

ROWS = 4000


def slow_at_first(root: str):
    """The first attempt of the second task writes some pages, then stands still for long."""
    real = master_builder.WriteTask

    def make(*arguments):
        task = real(*arguments)

        def slowed(batches):
            from pyspark import TaskContext

            context = TaskContext.get()
            name = f"attempt-{context.partitionId()}-{context.attemptNumber()}"
            for count, batch in enumerate(batches):
                if count == 5:
                    Path(root, name).touch()
                if count == 5 and context.partitionId() == 1 and context.attemptNumber() == 0:
                    time.sleep(40)
                yield batch

        def call(batches):
            yield from task(slowed(batches))

        return call

    return make


def main(root: str) -> None:
    """Build with speculation, on executors of their own."""
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    spark = (
        SparkSession.builder.master("local-cluster[2,2,1024]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "200ms")
        .config("spark.speculation.multiplier", "1.5")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "500ms")
        .getOrCreate()
    )
    master_builder.WriteTask = slow_at_first(root)
    frame = spark.range(ROWS).selectExpr("id", "repeat('x', 60) AS text")
    started = time.monotonic()
    master = ss.MasterTable.build(frame, os.path.join(root, "r"), key="id", page_bytes=4096)
    seconds = time.monotonic() - started
    attempts = sorted(path.name for path in Path(root).glob("attempt-*"))
    print(json.dumps({"rows": master.row_count, "attempts": attempts, "waited": seconds > 35}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
