"""The same under Spark Connect: no RDDs, no `sparkContext`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import assert_same_rows, oracle_join
from semistream.workload import products
from tests.spark.other_session import OtherSession
from tests.spark.versions import needs_made_up_stream

pytestmark = [pytest.mark.service, pytest.mark.slow]

GOODS = pa.table({"id": [1, 2, 2, 5], "name": ["a", "b", "B", "e"]})
SALES = [(2, 0), (9, 1), (None, 2), (5, 3)]

SCRIPT = """
from semistream.errors import SemistreamError
from semistream.spark.join import join
from semistream.spark.session import local_session
from semistream.spark.source import register_source

path, goods, folder = arguments
found = {"module": type(spark).__module__, "active": local_session() is spark}
master = ss.MasterTable.open(path)
frame = spark.createDataFrame([(2, 0), (9, 1), (None, 2), (5, 3)], "id long, n long")
out = join(frame, master, on="id", how="left", memory="1MB")
found["columns"] = out.columns
found["rows"] = [list(row) for row in out.collect()]
try:
    join(frame, master, on="id", memory=1)
except SemistreamError as error:
    found["error"] = type(error).__name__

register_source(spark)
options = {"keys": 100, "rows": 500, "rowsPerBatch": 500, "numPartitions": 1}
stream = spark.readStream.format("semistream").options(**options).load()
enriched = join(stream, ss.MasterTable.open(goods), on="product_id", how="left", memory="1MB")
writer = enriched.writeStream.format("parquet").option("checkpointLocation", folder + "/check")
writer.trigger(availableNow=True).start(folder + "/out").awaitTermination()
written = spark.read.parquet(folder + "/out")
found["streamed"] = [written.count(), written.where("name is not null").count()]
answer = found
"""


@needs_made_up_stream
def test_batch_stream_and_source(connect: OtherSession, tmp_path: Path) -> None:
    master = ss.MasterTable.from_arrow(GOODS, tmp_path / "small.master", key="id")
    goods = products(100, seed=1)
    shop = ss.MasterTable.from_arrow(goods, tmp_path / "shop.master", key="product_id")
    found = connect.run(SCRIPT, master.path, shop.path, tmp_path)
    assert found["module"] == "pyspark.sql.connect.session"
    assert found["active"]
    assert found["columns"] == ["id", "n", "name"]
    sales = pa.table(list(map(list, zip(*SALES, strict=True))), names=["id", "n"])
    expected = oracle_join(sales, GOODS, on="id", how="left")
    assert_same_rows([tuple(row) for row in found["rows"]], expected.rows)
    assert found["error"] == "BudgetError"
    assert found["streamed"] == [500, 500]
