"""A pipeline in a process of its own, which tells each step, so that it can be killed at any.

python shop_script.py <folder> <spark master> [more sales]
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from semistream.spark.pipeline.batch_log import BatchLog
from semistream.spark.pipeline.batch_run import BatchRun
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.pipeline import Pipeline
from semistream.spark.pipeline.routes import Retry
from semistream.spark.pipeline.staging import Staging
from semistream.spark.session import local_session

STEPS = {
    BatchLog: ("begin", "finish"),
    Staging: ("by_route",),
    BatchRun: ("_deliver", "_queue", "clean"),
    Folder: ("become",),
}
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def tell(owner: Any, name: str) -> None:
    """Print a line before each call of the method."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def told(*arguments: Any, **options: Any) -> Any:
        print("step", name, flush=True)
        return original(*arguments, **options)

    setattr(owner, name, told)


def main(folder: Path, master: str) -> None:
    for owner, names in STEPS.items():
        for name in names:
            tell(owner, name)
    spark = local_session(2, "1g", **SETTINGS, **{"spark.master": master})
    print("up", spark.sparkContext.master, flush=True)
    reader = spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1)
    pipeline = Pipeline(
        reader.parquet(str(folder / "sales")),
        folder / "goods.master",
        on="id",
        sink=str(folder / "out"),
        rejected=str(folder / "rejected"),
        checks={"n divides by eleven": "n % 11 != 0"},
        unmatched=Retry(backoff="10h", deadline="100h"),
        checkpoint=folder / "checkpoint",
        memory="1MB",
        # So short that some tuples of every batch are deferred.
        batch_target="50ms",
        trigger="availableNow",
        metrics=folder / "lines.jsonl",
    ).start()
    pipeline.await_termination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
