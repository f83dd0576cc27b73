"""A master follows a table of a real database that is polled by its column `updated_at`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import semistream as ss
from tests.differential.change_replay import stored
from tests.services.conftest import where
from tests.services.goods import EMPTY
from tests.services.service import program, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TABLES = {
    "postgresql": "updated_at timestamptz(6)",
    "mariadb": "updated_at timestamp(6)",
}


class Database:
    """One of the two, through its own client."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.uri = where("POSTGRES" if kind == "postgresql" else "MARIADB")
        self._at = urlsplit(self.uri)

    def run(self, *orders: str) -> list[list[str]]:
        """Run SQL; the rows of what it asks for."""
        text = ";".join(orders)
        if self.kind == "postgresql":
            command = [program("psql"), self.uri, "-q", "-A", "-t", "-F", "\t", "-c", text]
        else:
            at = [f"-h{self._at.hostname}", f"-P{self._at.port}", f"-u{self._at.username}"]
            secret = f"-p{unquote(self._at.password or '')}"
            command = [program("mariadb"), "--no-defaults", *at, secret, "-N", "-B"]
            command += ["-e", text, self._at.path[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [line.split("\t") for line in done.stdout.splitlines()]

    def options(self, table: str) -> str:
        """Those of Spark's JDBC source."""
        url = f"jdbc:{self.kind}://{self._at.hostname}:{self._at.port}{self._at.path}"
        return (
            f'url = "{url}"\nuser = "{self._at.username}"\n'
            f'password = "${{SHOP_PASSWORD}}"\ndbtable = "{table}"\n'
        )

    @property
    def password(self) -> str:
        """As it is in the environment."""
        return unquote(self._at.password or "")


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_polled(kind: str, folder: Path) -> None:
    database = Database(kind)
    database.run(
        "drop table if exists polled",
        f"create table polled (id bigint primary key, name varchar(50), price double precision, "
        f"gone boolean, {TABLES[kind]})",
    )

    def put(id: int, name: str, at: str, gone: str = "false") -> str:
        day = f"timestamp '2026-01-01 {at}'"
        return f"insert into polled values ({id}, '{name}', {id * 0.5}, {gone}, {day})"

    ss.MasterTable.from_arrow(EMPTY, folder / "master", key="id")
    file = folder / "polled.toml"
    file.write_text(
        f"""
[source]
format = "jdbc"
[source.options]
{database.options("polled")}
[master]
path = "{folder}/master"
[sync]
sequence_by = "updated_at"
apply_as_deletes = "gone"
every = "200ms"
log = "{folder}/spark.log"
[spark]
connectors = ["{kind}"]
"spark.sql.shuffle.partitions" = "2"
"spark.master" = "local[2]"
"""
    )
    database.run(*(put(n, f"name {n}", f"10:00:00.{n:06d}") for n in range(50)))
    order = [sys.executable, "-m", "semistream", "master", "sync", str(file)]
    wrong = os.environ | {"SHOP_PASSWORD": "wrong"}
    refused = subprocess.run(order, capture_output=True, text=True, check=False, env=wrong)
    said = refused.stderr.splitlines()[-1]
    assert re.search(r"The table polled at jdbc:\S+ cannot be read: .*(password|denied)", said), (
        said
    )
    right = os.environ | {"SHOP_PASSWORD": database.password}
    with open(folder / "out", "wb") as out:
        running = subprocess.Popen(order, stdout=out, stderr=out, env=right)
    try:

        def is_followed() -> bool:
            rows = database.run("select id, name, price from polled where not gone")
            wanted = sorted((int(id), name, float(price)) for id, name, price in rows)
            found = stored(ss.MasterTable.open(folder / "master")).to_pylist()
            assert running.poll() is None, (folder / "out").read_text()
            return sorted(tuple(row.values()) for row in found) == wanted

        later("all rows", is_followed)
        database.run(
            # Two changes in one second; a row that is marked; new ones, also of an open transaction
            # that began before all these.
            "update polled set name = 'b', updated_at = timestamp '2026-01-01 11:00:00.000001' "
            "where id = 1",
            "update polled set name = 'c', updated_at = timestamp '2026-01-01 11:00:00.000002' "
            "where id = 1",
            "update polled set gone = true, updated_at = timestamp '2026-01-01 11:00:00' "
            "where id = 2",
            put(60, "new", "11:00:01"),
        )
        later("changes", is_followed)
        database.run(put(61, "late", "11:00:00.5"))
        later("a late row", is_followed)
        database.run("delete from polled where id = 3", put(62, "last", "11:00:02"))
        later("62", lambda: 62 in stored(ss.MasterTable.open(folder / "master"))["id"].to_pylist())
        # What it cannot see, as the docs say.
        assert not is_followed()
    finally:
        running.kill()
        running.wait()
    assert database.uri.rpartition("@")[0].rpartition(":")[2] not in (folder / "out").read_text()


def later(what: str, is_so: Callable[[], bool]) -> None:
    """Wait until the master has it."""
    wait_until(is_so, f"the master did not follow: {what}", 600)
