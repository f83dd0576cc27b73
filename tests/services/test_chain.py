"""The whole chain of docs/sync.md under kills: changes and sales from Kafka, sales into Delta.

Both processes are killed at random moments, several times. At the end every sale is in the
warehouse once, with the row that the master had in the version that the sale's batch is on record
with, and no version of the master ever went back.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import semistream as ss
from tests.differential.change_replay import stored
from tests.services.conftest import Topics
from tests.services.goods import EMPTY, Goods, untidy
from tests.services.jars import jar_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PAGE = Path(__file__).parents[2] / "docs" / "sync.md"
ORDERS = {"goods": ["master", "sync", "goods.toml"], "sales": ["run", "sales.toml"]}
KEYS, ROUNDS, PATIENCE = 150, 3, 300.0


def files_of_the_page(folder: Path, server: str, changes: str, events: str) -> None:
    """Write the files that the page shows, for this broker and these topics."""
    chain = PAGE.read_text("utf-8").partition("## PostgreSQL to Delta")[2].partition("\n## ")[0]
    goods, sales = re.findall(r"```toml\n(.*?)```", chain, re.DOTALL)
    settings = {
        "spark.jars": jar_files("kafka-connector"),
        "spark.sql.shuffle.partitions": "2",
        "spark.master": "local[2]",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    more = "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())
    for name, text in (("goods", goods), ("sales", sales)):
        text = text.replace("localhost:9092", server).replace('every = "30s"', 'every = "1s"')
        text = text.replace("shop.public.goods", changes)
        text = text.replace('subscribe = "sales"', f'subscribe = "{events}"')
        assert text.rstrip().endswith("]"), "the table [spark] must be the last one"
        (folder / f"{name}.toml").write_text(text + more)


class Shop:
    """Sends changes and sales, a few at a time."""

    def __init__(self, topics: Topics, seed: int) -> None:
        self.goods, self.sales = Goods(seed), list[dict[str, Any]]()
        self.changes, self.events = topics.new(), topics.new()
        self._topics, self._random = topics, random.Random(seed)

    def send(self) -> None:
        """Some changes, which may come late or twice, and some sales, of any goods."""
        changes = untidy(self.goods.some(15, KEYS), self._random.randrange(1000))
        self._change(changes)
        new = [
            {"sale": f"s{n}", "id": self._random.randrange(KEYS), "quantity": n % 7}
            for n in range(len(self.sales), len(self.sales) + 20)
        ]
        self.sales += new
        self._topics.send(self.events, [json.dumps(one).encode() for one in new])

    def complete(self) -> None:
        """Let all goods be there."""
        missing = set(range(KEYS)) - self.goods.rows.keys()
        self._change([message for id in missing for message in self.goods.put(id)])

    def _change(self, messages: list[tuple[bytes, bytes | None]]) -> None:
        keys, values = zip(*messages, strict=True)
        self._topics.send(self.changes, values, keys)


class Process:
    """A command of the chain that can be killed and started again."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._running: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start it in the folder."""
        order = [sys.executable, "-m", "semistream", *ORDERS[self._name], *more]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        with open(self._folder / f"{self._name}.out", "ab") as out:
            self._running = subprocess.Popen(
                order, cwd=self._folder, env=environment, stdout=out, stderr=out
            )

    def is_at_work(self) -> bool:
        """Whether it runs; an error if it has failed."""
        assert self._running is not None
        code = self._running.poll()
        assert code in (None, 0), (self._folder / f"{self._name}.out").read_text()[-3000:]
        return code is None

    def kill(self) -> None:
        """End it as a crash would; its Java process sees that and ends."""
        if self._running is not None:
            self._running.send_signal(signal.SIGKILL)
            self._running.wait()

    def done(self) -> int:
        """How many steps are done: versions of the master, or batches of sales."""
        if self._name == "goods":
            return ss.MasterTable.latest_version(self._folder / "goods.master")
        log = self._folder / "checkpoints" / "sales" / "semistream" / "batches"
        return len(list(log.glob("*.done.json")))


@contextmanager
def chain(folder: Path) -> Iterator[dict[str, Process]]:
    """Both commands; what still runs is ended at the end."""
    both = {name: Process(folder, name) for name in ORDERS}
    try:
        yield both
    finally:
        for one in both.values():
            one.kill()


def rows_by_batch(warehouse: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row of a Delta table to which was only added, and the batch that its commit names."""
    for commit in sorted((warehouse / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        batches = [one["txn"]["version"] for one in actions if "txn" in one]
        for one in actions:
            assert "remove" not in one
            if "add" in one:
                for row in pq.read_table(warehouse / one["add"]["path"]).to_pylist():
                    yield batches[0], row


def versions_of(master: ss.MasterTable) -> dict[int, dict[int, tuple[int, str, float]]]:
    """All rows of each version, by key."""
    found = {}
    for one in master.history():
        rows = [tuple(row.values()) for row in stored(master.at_version(one.version)).to_pylist()]
        found[one.version] = {row[0]: row for row in rows}
        assert len(rows) == len(found[one.version])
    return found


def test_the_chain_of_the_page_is_killed_again_and_again(topics: Topics, folder: Path) -> None:
    seed = int(os.environ.get("SEMISTREAM_SEED", random.randrange(10_000)))
    print(f"SEMISTREAM_SEED={seed}")
    rng, shop = random.Random(seed), Shop(topics, seed)
    ss.MasterTable.from_arrow(EMPTY, folder / "goods.master", key="id")
    files_of_the_page(folder, topics.server, shop.changes, shop.events)
    with chain(folder) as both:
        for _ in range(ROUNDS):
            before = {name: one.done() for name, one in both.items()}
            for one in both.values():
                one.start()
            waits, end = set(both), time.monotonic() + PATIENCE
            pause = 0.2
            while waits:
                shop.send()
                assert time.monotonic() < end, f"{waits} did nothing"
                for name in list(waits):
                    if both[name].is_at_work() and both[name].done() > before[name]:
                        # Somewhere within the next batch.
                        time.sleep(rng.random())
                        both[name].kill()
                        waits.remove(name)
                # A slow machine does not get ever more to do.
                pause = min(1.1 * pause, 5.0)
                time.sleep(pause)
        shop.complete()
        for one in both.values():
            one.start("--once")
            while one.is_at_work():
                time.sleep(0.1)

    versions = versions_of(ss.MasterTable.open(folder / "goods.master"))
    goods = shop.goods
    assert versions[max(versions)] == goods.rows
    last: dict[int, int] = {}
    for number in sorted(versions):
        for id, row in versions[number].items():
            place = goods.was[id].index(row)
            assert place >= last.get(id, 0), f"version {number} has an older row of {id}"
            last[id] = place

    log = folder / "checkpoints" / "sales" / "semistream" / "batches"
    found = list(rows_by_batch(folder / "warehouse" / "sales"))
    assert Counter(row["sale"] for _, row in found) == Counter(one["sale"] for one in shop.sales)
    wanted = {one["sale"]: one for one in shop.sales}
    for batch, joined in found:
        version = json.loads((log / f"{batch:08d}.json").read_text())["version"]
        assert {name: joined[name] for name in ("sale", "id", "quantity")} == wanted[joined["sale"]]
        assert (joined["id"], joined["name"], joined["price"]) == versions[version][joined["id"]]
    done = [json.loads(path.read_text()) for path in sorted(log.glob("*.done.json"))]
    assert sum(one["counts"]["retried"] for one in done) > 0, "no sale came before its goods"
    assert done[-1]["waiting_retry"] == 0
