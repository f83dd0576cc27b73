"""From a real broker to warehouses, through the command a user runs, killed in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import fastavro
import psycopg
import pytest
from deltalake import DeltaTable

from tests.services.conftest import Topics, where
from tests.services.databases import PASSWORD
from tests.services.kafka_sales import (
    as_json,
    master,
    pipeline_file,
    postgres_sink,
    rows,
    sales,
    some,
)


def run(file: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "semistream", "run", str(file), "--once"]
    return subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_json_goes_to_three_warehouses_once_though_it_was_killed(
    topics: Topics, folder: Path
) -> None:
    prices = master(folder)
    names = [topics.new(), topics.new()]
    sent = []
    for seed, name in enumerate(names):
        records = sales(name, 6_000, seed)
        sent += records
        topics.send(name, as_json(records))
        topics.send(name, [b"{broken", b'{"sale": "x", "product_id": "many"}', None])
    uri = where("POSTGRES")
    table = names[0].replace("-", "_")
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE {table} (sale text, product_id int, quantity int, topic text, "
            "price float8, added_at timestamptz DEFAULT now())"
        )
    sinks = f'{postgres_sink(table)}[unmatched]\nformat = "delta"\npath = "{folder}/unmatched"\n'
    file = pipeline_file(
        folder, topics.server, ",".join(names), sink=sinks, connectors=("kafka", "delta")
    )
    told = []
    for point in ("database.rows:2", "deliver.sink:2", "log.finished"):
        done = run(file, SHOP_PASSWORD=PASSWORD, SEMISTREAM_CRASH_AT=point)
        assert done.returncode == -signal.SIGKILL, (point, done.stderr)
        told.append(done.stderr)
    done = run(file, SHOP_PASSWORD=PASSWORD)
    assert done.returncode == 0, done.stderr
    told += [done.stderr, done.stdout, (folder / "checkpoint/semistream/spark.log").read_text()]
    with psycopg.connect(uri) as connection:
        joined = connection.execute(f"SELECT sale, product_id, quantity, price, topic FROM {table}")
        got = sorted(joined.fetchall())
    unmatched = DeltaTable(folder / "unmatched").to_pyarrow_dataset().to_table().to_pylist()
    kept = [one for one in sent if one["product_id"] in prices]
    assert got == sorted(
        (
            *some(one, "sale", "product_id", "quantity"),
            prices[int(str(one["product_id"]))],
            str(one["sale"]).rpartition("-")[0],
        )
        for one in kept
    )
    others = [one for one in sent if one["product_id"] not in prices]
    columns = ("sale", "product_id", "quantity")
    assert sorted(some(one, *columns) for one in unmatched) == sorted(
        some(one, *columns) for one in others
    )
    texts = [one["_corrupt_record"] for one in rows(folder / "rejected")]
    assert (len(texts), texts.count("{broken"), texts.count(None)) == (6, 2, 2)
    assert not any(PASSWORD in text for text in told)


AVRO = {
    "type": "record",
    "name": "Sale",
    "namespace": "shop",
    "fields": [
        {"name": "sale", "type": "string"},
        {"name": "product_id", "type": ["null", "long"]},
        {"name": "quantity", "type": "int"},
    ],
}


def as_avro(records: Sequence[dict[str, object]]) -> list[bytes]:
    schema = fastavro.parse_schema(dict(AVRO))
    found = []
    for one in records:
        data = BytesIO()
        fastavro.schemaless_writer(data, schema, one)
        found.append(data.getvalue())
    return found


def test_avro_goes_back_to_kafka_at_least_once_with_ids(topics: Topics, folder: Path) -> None:
    prices = master(folder)
    name, out = topics.new(), topics.new()
    sent = sales(name, 4_000)
    topics.send(name, [*as_avro(sent), b"", b"\x02", as_avro(sent[:1])[0] + b"more", None])
    sink = f"""[sink]
format = "kafka"
topic = "{out}"
key = "sale"
[sink.options]
"kafka.bootstrap.servers" = "{topics.server}"
"""
    file = pipeline_file(
        folder,
        topics.server,
        name,
        sink=sink,
        value="avro",
        schema=json.dumps(AVRO),
        per_batch=1_500,
    )
    done = run(file, SEMISTREAM_CRASH_AT="deliver.sink:2")
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = run(file)
    assert done.returncode == 0, done.stderr
    records = topics.read(out)
    by_id = {dict(one.headers())["semistream_id"]: one for one in records}
    assert len(by_id) == len(sent) < len(records), "the batch of the kill came twice, with its ids"
    got = sorted(
        some(json.loads(one.value()), "sale", "product_id", "quantity", "price", "topic")
        for one in by_id.values()
    )
    assert got == sorted(
        (
            *some(one, "sale", "product_id", "quantity"),
            prices.get(int(str(one["product_id"]))),
            name,
        )
        for one in sent
    )
    assert all(one.key().decode() == json.loads(one.value())["sale"] for one in records)
    rejected = [one["_corrupt_record"] for one in rows(folder / "rejected")]
    assert len(rejected) == 4
    assert rejected.count(None) == 1


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """What was said, if it is an error in one sentence or two."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr
    assert "SQLSTATE" not in done.stderr
    return " ".join(done.stderr.split())


def test_a_topic_that_does_not_exist_is_an_error_in_one_line(topics: Topics, folder: Path) -> None:
    master(folder)
    said = one_line(run(pipeline_file(folder, topics.server, "nowhere")))
    assert f"reads the topic nowhere of {topics.server}" in said
    assert "Make the topic, or name another" in said


def test_errors_say_what_to_do_and_the_pipeline_goes_on(topics: Topics, folder: Path) -> None:
    script = Path(__file__).with_name("kafka_errors_script.py")
    path = os.pathsep.join([str(script.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        env=os.environ | {"PYTHONPATH": path, "SHOP_PASSWORD": "geheim"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert "No Kafka broker answers at 127.0.0.1:" in said["no broker"]
    assert "where the topic nowhere should be" in said["no broker"]
    assert 'password authentication failed for user "shop"' in said["password"]
    assert "see to server, user and password, and start again" in said["password"]
    assert "does not exist there, or has been deleted" in said["deleted"]
    first, second = said["topics"]
    assert f"the topics {first}, {second} of {topics.server}" in said["deleted"]
    assert f"no longer has records of the topic {second}" in said["made anew"]
    assert "failOnDataLoss" in said["made anew"]
    assert said["begun"] == said["went on"] == ""
    assert not any("\n" in one or "geheim" in one for one in said.values())
    assert "geheim" not in (folder / "spark.log").read_text() + done.stderr
    found = [str(one["sale"]) for one in rows(folder / "out")]
    assert len(found) == len(set(found)) == 250


@pytest.mark.slow
def test_bursts_from_a_producer_that_runs_for_more_than_a_minute(
    topics: Topics, folder: Path
) -> None:
    """Ten times the rate for some seconds, twice, while the pipeline is killed and goes on."""
    prices = master(folder)
    name = topics.new()
    sent: list[dict[str, object]] = []
    file = pipeline_file(
        folder, topics.server, name, per_batch=20_000, more='batch_target = "2s"\ntrigger = "1s"'
    )

    def produce() -> None:
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < 65:
            rate = 4_000 if 15 < passed < 22 or 40 < passed < 47 else 400
            records = sales(f"{name}-{len(sent)}", rate, len(sent))
            topics.send(name, as_json(records))
            sent.extend(records)
            time.sleep(max(0.0, 1 - (time.monotonic() - begin - passed)))

    producer = threading.Thread(target=produce)
    producer.start()
    command = [sys.executable, "-m", "semistream", "run", str(file)]
    while producer.is_alive():
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        producer.join(35)
        process.kill()
        process.wait()
    done = run(file)
    assert done.returncode == 0, done.stderr
    got = sorted(
        some(one, "sale", "product_id", "quantity", "price") for one in rows(folder / "out")
    )
    assert len(sent) > 65 * 300
    assert got == sorted(
        (*some(one, "sale", "product_id", "quantity"), prices.get(int(str(one["product_id"]))))
        for one in sent
    )
