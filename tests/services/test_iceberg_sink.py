"""From a real broker to an Iceberg table, killed in between; Iceberg exists for Spark 4.1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyiceberg.table import StaticTable

from semistream.errors import ConnectorError
from semistream.spark.connectors import CONNECTORS, resolved
from tests.services.conftest import Topics
from tests.services.kafka_sales import as_json, master, rows, sales, some

pytestmark = pytest.mark.iceberg

SCRIPT = Path(__file__).with_name("iceberg_sink_script.py")
ROOT = Path(__file__).parents[2]


def run(folder: Path, server: str, topic: str, point: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "SEMISTREAM_CRASH_AT": point}
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), server, topic],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def test_json_goes_to_iceberg_once_though_it_was_killed(topics: Topics, folder: Path) -> None:
    if not CONNECTORS["iceberg"].fits(pyspark.__version__):
        with (
            pytest.raises(ConnectorError, match="no iceberg connector for Spark"),
            resolved(["iceberg"], pyspark.__version__, {}),
        ):
            pass
        return
    prices = master(folder)
    topic = topics.new()
    sent = sales(topic, 5_000)
    topics.send(topic, [*as_json(sent), b"{broken"])
    # Once after the rows are there and before that is on record, once in the middle of the next.
    for point in ("deliver.sink:2", "stage.moved"):
        done = run(folder, topics.server, topic, point)
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    done = run(folder, topics.server, topic)
    assert done.returncode == 0, done.stderr[-3000:]
    newest = max(
        (folder / "lake/shop/sales/metadata").glob("v*.metadata.json"),
        key=lambda path: int(path.name[1:].partition(".")[0]),
    )
    table = StaticTable.from_metadata(str(newest))
    found = table.scan().to_arrow().to_pylist()
    columns = ("sale", "product_id", "quantity")
    assert sorted(map(str, (some(one, *columns, "price") for one in found))) == sorted(
        str((*some(one, *columns), prices.get(int(str(one["product_id"]))))) for one in sent
    )
    assert len(rows(folder / "rejected")) == 1
    batches = [
        str(one.summary["semistream-batch"]) for one in table.metadata.snapshots if one.summary
    ]
    assert sorted(batches) == sorted(set(batches))
