"""A checkpoint that was written before, in the middle of a batch: the pipeline goes on from it.

Two batches are done. The third is staged and written, and its tuples are in the queues, but it has
no outcome, so it runs again. `tests/compatibility/make.py` made all of it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import semistream as ss
from semistream.testing import ManualClock, assert_same_rows, oracle_join
from tests.compatibility.data import EARLY, FILES, LATE, LATER, PIPELINE, goods
from tests.compatibility.make import HOME
from tests.spark.pipeline.conftest import Shop

pytestmark = [pytest.mark.service, pytest.mark.slow]

OUTPUT = ("id", "n", "name")


@pytest.fixture
def stopped(spark: SparkSession, tmp_path: Path) -> Shop:
    """The shop as it was when its pipeline stopped.

    Spark knows the files that it has read by their absolute paths, so they are put in here. A user
    who moves a checkpoint of a file source has to do the same, or leave the files where they are.
    """
    folder = Path(shutil.copytree(FILES / "pipeline", tmp_path / "shop"))
    for log in (folder / "checkpoint" / "sources" / "0").iterdir():
        log.write_text(log.read_text().replace(f"/{HOME}", str(folder)))
    sold = [pq.read_metadata(path).num_rows for path in (folder / "sales").iterdir()]
    return Shop(spark, folder, seed=12, goods=goods(LATE), sold=sum(sold), files=len(sold))


def options(shop: Shop, **more: Any) -> dict[str, Any]:
    rejected = str(shop.folder / "rejected")
    return PIPELINE | {"unmatched": ss.Retry(deadline="1h"), "rejected": rejected} | more


def sold_in(shop: Shop) -> pa.Table:
    paths = sorted((shop.folder / "sales").iterdir())
    return pa.concat_tables([pq.read_table(path) for path in paths])


def names(shop: Shop) -> list[str]:
    """The entries of both queues."""
    home = shop.folder / "checkpoint" / "semistream"
    return [entry.name for queue in ("retry", "deferred") for entry in (home / queue).glob("0*")]


def test_it_goes_on_with_exactly_the_rows_that_are_left(stopped: Shop) -> None:
    assert len(names(stopped)) >= 4, "tuples wait in both queues"
    assert ss.pinned_versions(stopped.folder / "checkpoint") == {1}
    clock = ManualClock(LATER)
    # The batch that runs again keeps to its record: version 1, whatever the newest is by now.
    ss.MasterTable.open(stopped.folder / "goods.master").upsert(goods(LATE).slice(EARLY))
    stopped.sell(70)
    status = stopped.run(**options(stopped, clock=clock)).status()
    sold = sold_in(stopped)
    keyed = sold.filter(sold["id"].is_valid())
    expected = oracle_join(keyed, goods(LATE), on="id")
    assert_same_rows(stopped.rows("out", *OUTPUT), expected.rows)
    assert len(stopped.rows("rejected", "n")) == len(sold) - len(keyed)
    assert (status.waiting_retry, status.waiting_deferred) == (expected.unmatched, 0)
    assert (status.totals.source, status.version) == (len(sold), 2)


def test_what_it_wrote_before_is_left_as_it_was(stopped: Shop) -> None:
    """Without anything new: the third batch is finished, and what was deferred is joined."""
    done = {path: path.read_bytes() for path in (stopped.folder / "out").rglob("*.parquet")}
    status = stopped.run(**options(stopped, clock=ManualClock(LATER))).status()
    assert (
        done.items()
        <= {path: path.read_bytes() for path in (stopped.folder / "out").rglob("*.parquet")}.items()
    )
    sold = sold_in(stopped)
    keyed = sold.filter(sold["id"].is_valid())
    expected = oracle_join(keyed, goods(EARLY), on="id")
    assert_same_rows(stopped.rows("out", *OUTPUT), expected.rows)
    assert (status.waiting_retry, status.waiting_deferred) == (expected.unmatched, 0)
