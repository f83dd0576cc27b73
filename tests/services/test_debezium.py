"""A master follows a table of PostgreSQL through a real Debezium, by the files of docs/sync.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import semistream as ss
from tests.differential.change_replay import stored
from tests.services.conftest import Topics, where
from tests.services.goods import EMPTY
from tests.services.jars import jars
from tests.services.service import free_port, program, wait_until
from tests.services.test_chain import PAGE, files_of_the_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def settings_of_the_page(prefix: str) -> dict[str, Any]:
    """The connector as the page has it, for this PostgreSQL and another prefix of its topics."""
    (text,) = re.findall(r"```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    at = urlsplit(where("POSTGRES"))
    found: dict[str, Any] = json.loads(text)
    return found | {
        "name": prefix,
        "topic.prefix": prefix,
        "slot.name": prefix.replace("-", "_"),
        "publication.name": prefix.replace("-", "_"),
        # Whoever owns the tables, and is no superuser, publishes some of them.
        "publication.autocreate.mode": "filtered",
        "database.hostname": at.hostname,
        "database.port": at.port,
        "database.dbname": at.path[1:],
        "database.user": at.username,
        "database.password": unquote(at.password or ""),
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "topic.creation.default.replication.factor": 1,
        "topic.creation.default.partitions": 1,
    }


@contextmanager
def debezium(folder: Path, server: str, prefix: str) -> Iterator[None]:
    """A worker of Kafka Connect with the connector; killed at the end."""
    folder.mkdir(exist_ok=True)
    worker = {
        "bootstrap.servers": server,
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": 500,
        "listeners": f"http://127.0.0.1:{free_port()}",
    }
    for file, lines in (("worker", worker), ("connector", settings_of_the_page(prefix))):
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (folder / file).write_text(text)
    order = [program("java"), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars('debezium')}/*"]
    order += ["org.apache.kafka.connect.cli.ConnectStandalone"]
    order += [str(folder / "worker"), str(folder / "connector")]
    with open(folder / "log", "ab") as log:
        running = subprocess.Popen(order, stdout=log, stderr=log)
    try:
        yield
    finally:
        running.kill()
        running.wait()


def sql(*orders: str) -> list[list[str]]:
    """Run SQL, each order a transaction; the rows of what the last asks for."""
    command = [program("psql"), where("POSTGRES"), "-q", "-A", "-t", "-F", "\t"]
    for order in orders:
        command += ["-c", order]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_changes_of_postgresql_through_debezium(topics: Topics, folder: Path) -> None:
    ss.MasterTable.from_arrow(EMPTY, folder / "goods.master", key="id")
    prefix = topics.new()
    topic = f"{prefix}.public.goods"
    topics.make(topic)
    files_of_the_page(folder, topics.server, topic, prefix)
    sql(
        "drop table if exists goods",
        "create table goods (id bigint primary key, name text, price double precision)",
        "insert into goods select n, 'name ' || n, n * 0.5 from generate_series(1, 40) n",
    )

    def synced(least: int) -> None:
        """Follow what there is once the topic has so many messages."""
        log = folder / "connect" / "log"
        wait_until(
            lambda: topics.end(topic) >= least,
            f"Debezium has sent {topics.end(topic)} messages: {log.read_text()[-3000:]}",
            600,
        )
        done = subprocess.run(
            [sys.executable, "-m", "semistream", "master", "sync", "goods.toml", "--once"],
            cwd=folder,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found = stored(ss.MasterTable.open(folder / "goods.master")).to_pylist()
        rows = sql("select id, name, price from goods")
        wanted = sorted((int(id), name, float(price)) for id, name, price in rows)
        assert sorted(tuple(row.values()) for row in found) == wanted

    with debezium(folder / "connect", topics.server, prefix):
        synced(40)
        sql(
            "begin; update goods set price = price + 1 where id <= 10; "
            "update goods set name = upper(name) where id <= 5; delete from goods where id = 4; "
            "insert into goods values (4, 'again', 1); commit",
            "update goods set id = 100 where id = 7",
            "delete from goods where id > 30",
        )
        # 10 + 5 updates; a delete with its tombstone and an insert; the same for the changed key;
        # 11 deletes with theirs, for 100 is among them.
        synced(40 + 15 + 3 + 3 + 22)
