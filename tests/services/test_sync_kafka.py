"""A master follows a real topic: what Debezium writes, and a compacted one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import semistream as ss
from tests.differential.change_replay import stored
from tests.services.conftest import Topics
from tests.services.goods import EMPTY, SCHEMA, Goods, Message, untidy
from tests.services.jars import jar_files
from tests.services.service import wait_until

pytestmark = pytest.mark.timeout(1800)

SPARK = f"""
[spark]
connectors = ["kafka"]
"spark.jars" = "{jar_files("kafka-connector")}"
"spark.sql.shuffle.partitions" = "2"
"spark.master" = "local[2]"
"""


def sync_file(folder: Path, source: str, options: str = "") -> Path:
    """A file for `semistream master sync`."""
    file = folder / "sync.toml"
    file.write_text(
        f"""
[source]
format = "kafka"
value = "json"
{source}
startingOffsets = "earliest"
maxOffsetsPerTrigger = 1500
{options}
[master]
path = "{folder}/file.master"
[sync]
checkpoint = "{folder}/file.checkpoint"
every = "1s"
{SPARK}
"""
    )
    return file


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )


def synced(file: Path) -> subprocess.CompletedProcess[str]:
    return run("-m", "semistream", "master", "sync", str(file), "--once")


def by_script(topics: Topics, folder: Path, *feeds: str) -> list[dict[str, Any]]:
    """What each sync of the script has done."""
    done = run("-m", "tests.services.sync_script", topics.server, str(folder), *feeds)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def send(topics: Topics, topic: str, messages: list[Message]) -> None:
    topics.send(topic, [value for _, value in messages], [key for key, _ in messages])


def rows_in(folder: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in stored(ss.MasterTable.open(folder)).to_pylist())


def test_changes_of_debezium_by_a_file_until_the_topic_has_lost_some(
    topics: Topics, folder: Path
) -> None:
    ss.MasterTable.from_arrow(EMPTY, folder / "file.master", key="id")
    topic, goods = topics.new(1), Goods(7)
    goods.some(150, 120)
    first = goods.snapshot() + goods.some(700, 120)
    send(topics, topic, untidy(first, 1))
    file = sync_file(
        folder,
        f"""
schema = "{SCHEMA}"
[source.options]
"kafka.bootstrap.servers" = "{topics.server}"
subscribe = "{topic}"
""",
    )
    done = synced(file)
    assert done.returncode == 0, done.stderr
    assert rows_in(folder / "file.master") == sorted(goods.rows.values())
    assert "changes" in done.stdout
    assert "behind" in done.stdout
    # Old messages come once more, all of them, among new ones.
    send(topics, topic, untidy([*first, *goods.some(500, 150)], 2))
    done = synced(file)
    assert done.returncode == 0, done.stderr
    assert rows_in(folder / "file.master") == sorted(goods.rows.values())
    # The retention time removes what the master has not seen yet.
    before, position = rows_in(folder / "file.master"), topics.end(topic)
    send(topics, topic, [message for n in range(30) for message in goods.put(n)])
    topics.remove_before(topic, position + 3)
    done = synced(file)
    assert done.returncode != 0
    told = " ".join(done.stderr.split())
    assert "The source no longer has changes that the master at" in told
    assert "build the master anew from a snapshot of the source" in told
    assert "Traceback" not in told
    assert rows_in(folder / "file.master") == before


def compacted(topics: Topics, topic: str, most: int) -> bool:
    """Whether a topic has at most so many messages left."""
    settings = {"bootstrap.servers": topics.server, "group.id": "count"}
    more = {"auto.offset.reset": "earliest", "enable.partition.eof": True}
    reader = Consumer({**settings, **more})
    reader.subscribe([topic])
    found = 0
    while (message := reader.poll(20)) is not None and message.error() is None:
        found += 1
    reader.close()
    return found <= most


def test_a_compacted_topic_by_a_file_and_both_formats_by_sync(topics: Topics, folder: Path) -> None:
    for name in ("compacted", "debezium", "file.master"):
        ss.MasterTable.from_arrow(EMPTY, folder / name, key="id")
    settings = {"segment.ms": "200", "min.cleanable.dirty.ratio": "0.01"}
    topic = topics.new(1, cleanup_policy="compact", **settings)
    rng, rows = random.Random(3), dict[int, tuple[int, str, float]]()
    sent = 0

    def some(count: int) -> None:
        nonlocal sent
        messages: list[Message] = []
        for _ in range(count):
            id, name = rng.randrange(100), f"name {rng.random()}"
            key = json.dumps({"id": id}).encode()
            if rng.random() < 0.3:
                rows.pop(id, None)
                messages.append((key, None))
            else:
                rows[id] = (id, name, 0.5)
                messages.append((key, json.dumps({"name": name, "price": 0.5}).encode()))
        send(topics, topic, messages)
        sent += count

    some(1000)
    file = sync_file(
        folder,
        f"""
key = "id long"
schema = "name string, price double"
[source.options]
"kafka.bootstrap.servers" = "{topics.server}"
subscribe = "{topic}"
""",
    )
    assert synced(file).returncode == 0
    assert rows_in(folder / "file.master") == sorted(rows.values())

    def is_compacted() -> bool:
        # Only what lies before the segment that is written to is compacted.
        some(1)
        return compacted(topics, topic, sent // 2)

    wait_until(is_compacted, "the topic was not compacted", 600)
    some(50)
    # One master has seen all of it, the other what is left.
    assert synced(file).returncode == 0
    several, goods = topics.new(3), Goods(8)
    send(topics, several, untidy([*goods.some(600, 90), *goods.snapshot()], 1))
    _, told = by_script(topics, folder, f"compacted={topic}", f"debezium={several}")
    for name in ("compacted", "file.master"):
        assert rows_in(folder / name) == sorted(rows.values())
    assert rows_in(folder / "debezium") == sorted(goods.rows.values())
    assert told["changes"] > told["fresh"] > 0
