"""A pipeline in a process of its own, which tells its steps: see tests/chaos/pipelines.py.

python -m tests.chaos.pipeline_script FOLDER REJECTED SPARK_MASTER [CRASH_POINT_OF_THE_DRIVER]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import semistream as ss
from semistream import crash_points
from semistream.errors import MasterNotFoundError, SemistreamError
from semistream.spark.pipeline.pipeline import Pipeline
from semistream.spark.pipeline.routes import Retry
from semistream.spark.session import local_session
from tests.recovery.shop_script import SETTINGS, STEPS, tell

CRASH = ("SEMISTREAM_CRASH_AT", "SEMISTREAM_CRASH_MARK")
CLUSTER = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    # Executors are killed on purpose: neither they nor the application are given up for that.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "12",
}


def main(folder: Path, rejected: str, master: str, crash_at: str = "") -> None:
    """Build what is not there yet, then run the pipeline to its end."""
    if crash_at:
        crash_points.arm(crash_at)
    for owner, names in STEPS.items():
        for name in names:
            tell(owner, name)
    crash = {f"spark.executorEnv.{name}": os.environ[name] for name in CRASH if name in os.environ}
    spark = local_session(
        2,
        "1g",
        **SETTINGS,
        **CLUSTER,
        **crash,
        **{"spark.master": master, "spark.port.maxRetries": "100"},
    )
    print("up", flush=True)
    parts = spark.read.parquet(str(folder / "parts.parquet"))
    try:
        ss.MasterTable.open(folder / "parts.master")
    except MasterNotFoundError:
        ss.MasterTable.build(parts, folder / "parts.master", key="id", page_bytes=4096)
    reader = spark.readStream.schema("id long, n long").option("maxFilesPerTrigger", 1)
    pipeline = Pipeline(
        reader.parquet(str(folder / "sales")),
        folder / "goods.master",
        on="id",
        sink=str(folder / "out"),
        rejected=rejected,
        checks={"n divides by eleven": "n % 11 != 0"},
        unmatched=Retry(backoff="10h", deadline="100h"),
        checkpoint=folder / "checkpoint",
        memory="1MB",
        # So short that some tuples of long batches are deferred.
        batch_target="50ms",
        trigger="availableNow",
    ).start()
    pipeline.await_termination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except SemistreamError as error:
        print("told", type(error).__name__, str(error).partition("\n")[0], flush=True)
        sys.exit(1)
