"""From a real broker to a warehouse, through the command a user runs, killed in between."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import semistream as ss
from tests.services.conftest import Topics
from tests.services.jars import jar_files

PRODUCTS = 2_000


def master(folder: Path) -> dict[int, float]:
    """A master table of even product numbers; its prices."""
    ids = np.arange(0, PRODUCTS, 2)
    prices = ids * 0.5
    table = pa.table({"product_id": ids, "price": prices})
    ss.MasterTable.from_arrow(table, folder / "products.master", key="product_id")
    return dict(zip(ids.tolist(), prices.tolist(), strict=True))


def pipeline_file(folder: Path, source: str, more: str = "") -> Path:
    """A pipeline file with a Kafka source."""
    file = folder / "pipeline.toml"
    file.write_text(
        f"""
[source]
format = "kafka"
{source}
[master]
path = "{folder}/products.master"
[join]
on = "product_id"
memory = "4MB"
[sink]
path = "{folder}/out"
[rejected]
path = "{folder}/rejected"
[pipeline]
checkpoint = "{folder}/checkpoint"
{more}
[spark]
connectors = ["kafka"]
"spark.jars" = "{jar_files("kafka-connector")}"
"spark.sql.shuffle.partitions" = "2"
"spark.master" = "local[2]"
"""
    )
    return file


def command(file: Path) -> list[str]:
    return [sys.executable, "-m", "semistream", "run", str(file), "--once"]


def rows(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pq.read_table(folder).to_pylist() if folder.exists() else []
    return found


def test_json_from_two_topics_is_joined_once_though_it_was_killed(
    topics: Topics, folder: Path
) -> None:
    prices = master(folder)
    random = np.random.default_rng(1)
    names = [topics.new(), topics.new()]
    sent = []
    for name in names:
        ids = random.integers(0, PRODUCTS, 20_000).tolist()
        records = [
            {"sale": f"{name}-{n}", "product_id": product, "quantity": n % 7}
            for n, product in enumerate(ids)
        ]
        sent += records
        topics.send(name, [json.dumps(one).encode() for one in records])
        topics.send(name, [b"{broken", b'{"sale": "x", "product_id": "many"}', None])
    file = pipeline_file(
        folder,
        f"""value = "json"
schema = "sale string, product_id long, quantity int"
keep = ["topic"]
[source.options]
"kafka.bootstrap.servers" = "{topics.server}"
subscribe = "{",".join(names)}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 4000
""",
    )
    for _ in range(2):
        process = subprocess.Popen(command(file), stderr=subprocess.DEVNULL)
        seen = len(list((folder / "checkpoint").glob("commits/*")))
        end = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < end:
            if len(list((folder / "checkpoint").glob("commits/[0-9]*"))) > seen + 1:
                process.kill()
            time.sleep(0.05)
        process.wait()
    done = subprocess.run(command(file), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    joined = rows(folder / "out")
    wanted = sorted(
        (one["sale"], one["product_id"], one["quantity"], prices.get(int(str(one["product_id"]))))
        for one in sent
    )
    got = sorted((r["sale"], r["product_id"], r["quantity"], r["price"]) for r in joined)
    assert got == wanted
    assert all(str(one["sale"]).startswith(str(one["topic"])) for one in joined)
    rejected = rows(folder / "rejected")
    texts = [one["_corrupt_record"] for one in rejected]
    assert len(rejected) == 6
    assert texts.count("{broken") == 2
    assert texts.count(None) == 2


def test_a_topic_that_does_not_exist_is_an_error_in_one_line(topics: Topics, folder: Path) -> None:
    master(folder)
    file = pipeline_file(
        folder,
        f"""value = "json"
schema = "product_id long"
[source.options]
"kafka.bootstrap.servers" = "{topics.server}"
subscribe = "nowhere"
startingOffsets = "earliest"
""",
    )
    done = subprocess.run(command(file), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 8, done.stderr
