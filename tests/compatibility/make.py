"""Makes the committed files: `python -m tests.compatibility.make`, from the repository's root.

Made once for each format. A change of the code does not make them anew: they are there to be
opened by code that did not write them. A new format number gets a folder of its own.

Spark's own part of a checkpoint names the files of a file source by their absolute paths. They
are kept as `file:///@HOME@/…`, and a test puts the folder there that it has copied them to.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import semistream as ss
from semistream.parts.shed_file import ShedFile
from semistream.spark.pipeline.batch_log import BatchLog
from semistream.spark.session import local_session
from semistream.testing import ManualClock
from tests.compatibility.data import EARLY, FILES, MASTERS, PIPELINE, goods, shed_sales
from tests.spark.pipeline.conftest import Shop

HOME = "@HOME@"


def make_masters(folder: Path) -> None:
    for name, life in MASTERS.items():
        master = ss.MasterTable.from_arrow(
            life.table(life.built),
            folder / name,
            key=list(life.key),
            page_bytes=4096,
            **life.options,
        )
        keys = [key[0] for key in life.deleted] if len(life.key) == 1 else list(life.deleted)
        master.upsert(life.changes()).delete(keys)


def make_shed_folder(folder: Path) -> None:
    """A run with far too few slots sheds most of a burst, and is closed before any comes back."""
    shed: list[int] = []
    append = ShedFile.append

    def noted(file: ShedFile, since: float, batch: pa.RecordBatch) -> None:
        append(file, since, batch)
        shed.extend(batch.column("n").to_pylist())

    with tempfile.TemporaryDirectory() as home, mock.patch.object(ShedFile, "append", noted):
        master = ss.MasterTable.from_arrow(goods(EARLY), f"{home}/goods", key="id", page_bytes=4096)
        engine = ss.engine(
            master,
            on="id",
            how="left",
            memory="1MB",
            algorithm="hybridjoin",
            clock=ManualClock(tick=0.001),
            stream_slots=8,
        )
        run: Any = engine.run_timed(
            [(0.0, shed_sales())], shedding=ss.Shedding("keep", folder / "shed")
        )
        next(run)
        run.close()
    (folder / "shed.json").write_text(json.dumps(shed))


class StoppedError(Exception):
    """Stops the pipeline in the middle of a batch."""


@contextmanager
def stopped_before_outcome(nth: int) -> Iterator[None]:
    """The nth batch is written and its tuples are in the queues, but it has no outcome yet."""
    finish, calls = BatchLog.finish, iter(range(1, 1000))

    def wrapped(log: BatchLog, outcome: Any) -> None:
        if next(calls) == nth:
            raise StoppedError
        finish(log, outcome)

    with mock.patch.object(BatchLog, "finish", wrapped):
        yield


def make_checkpoint(folder: Path) -> None:
    """Three micro-batches with tuples to retry: the second is too slow, so the third defers."""
    folder.mkdir()
    spark = local_session(1, "1g", **{"spark.sql.shuffle.partitions": "1"})
    shop = Shop(spark, folder, seed=12)
    shop.master(goods(EARLY))
    shop.sell(40, 60, 1100)
    options = PIPELINE | {
        "unmatched": ss.Retry(deadline="1h"),
        "rejected": str(folder / "rejected"),
    }
    clock = ManualClock(1_000_000.0, tick=1.0)
    with stopped_before_outcome(3):
        pipeline = shop.pipeline(clock=clock, **options).start()
        try:
            pipeline.await_termination()
        except StoppedError:
            assert list((folder / "checkpoint" / "semistream" / "deferred").iterdir())
        else:
            raise AssertionError("the pipeline ended by itself")
    spark.stop()
    for crc in folder.rglob("*.crc"):
        crc.unlink()
    for log in (folder / "checkpoint" / "sources").rglob("[0-9]*"):
        if log.is_file():
            log.write_text(log.read_text().replace(f"file://{folder}", f"file:///{HOME}"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        made = Path(home) / "made"
        make_masters(made)
        make_shed_folder(made)
        make_checkpoint(made / "pipeline")
        shutil.rmtree(FILES, ignore_errors=True)
        shutil.copytree(made, FILES)
