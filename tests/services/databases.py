"""PostgreSQL and MariaDB, each with one database and a user `shop`."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from typing import Final

from tests.services.service import LOOPBACK, Service, ServiceError, program

USER: Final = "shop"
PASSWORD: Final = "pa55 w/rd"
"""Needs quoting in a URI, as real ones do."""
DATABASE: Final = "shop"
_QUOTED: Final = "pa55%20w%2Frd"


class Postgres(Service):
    """PostgreSQL with logical decoding on."""

    name = "postgres"
    user = "postgres"

    def prepare(self) -> None:
        """Make the cluster of databases, then the one of the tests."""
        files = str(self.folder / "data")
        self.run(
            self._program("initdb"), "-D", files, "-A", "trust", "-U", "postgres", "-E", "UTF8"
        )
        with open(self.folder / "data" / "pg_hba.conf", "w") as rules:
            # The owner comes by a socket in its own folder; everyone else shows a password.
            rules.write("local all postgres trust\n")
            for what in ("all", "replication"):
                rules.write(f"host {what} all 127.0.0.1/32 scram-sha-256\n")
        with open(self.folder / "data" / "postgresql.auto.conf", "a") as settings:
            settings.write("fsync = off\nwal_level = logical\n")
        control = self._program("pg_ctl")
        self.run(
            control,
            "-D",
            files,
            "-w",
            "-l",
            str(self.folder / "first"),
            "-o",
            self._options,
            "start",
        )
        try:
            for order in (
                f"CREATE ROLE {USER} LOGIN REPLICATION PASSWORD '{PASSWORD}'",
                f"CREATE DATABASE {DATABASE} OWNER {USER}",
            ):
                self.run(
                    program("psql"),
                    "-h",
                    str(self.folder),
                    "-p",
                    str(self.port),
                    "-U",
                    "postgres",
                    "-c",
                    order,
                )
        finally:
            self.run(control, "-D", files, "-w", "stop")

    def command(self) -> Sequence[str]:
        """The server; its socket is in its own folder."""
        return [self._program("postgres"), "-D", str(self.folder / "data"), *self._options.split()]

    def answers(self) -> bool:
        """Whether it takes queries."""
        try:
            self.run(self._program("pg_isready"), "-h", LOOPBACK, "-p", str(self.port))
        except ServiceError:
            return False
        return True

    def environment(self) -> dict[str, str]:
        """A URI as its clients take it."""
        uri = f"postgresql://{USER}:{_QUOTED}@{LOOPBACK}:{self.port}/{DATABASE}"
        return {"SEMISTREAM_TEST_POSTGRES": uri}

    @property
    def _options(self) -> str:
        return f"-p {self.port} -k {self.folder} -c listen_addresses={LOOPBACK}"

    def _program(self, name: str) -> str:
        return program(name, *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True))


class MariaDB(Service):
    """MariaDB with InnoDB tables."""

    name = "mariadb"
    user = "mysql"

    def prepare(self) -> None:
        """Make the system's tables, the database and the user."""
        (self.folder / "orders.sql").write_text(
            f"CREATE DATABASE {DATABASE};\n"
            f"CREATE USER '{USER}'@'{LOOPBACK}' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON {DATABASE}.* TO '{USER}'@'{LOOPBACK}';\n"
            f"GRANT ALL ON plain.* TO '{USER}'@'{LOOPBACK}';\n"
        )
        self.run(
            program("mariadb-install-db", "/usr/sbin"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )

    def command(self) -> Sequence[str]:
        """The server; it makes database and user when it first starts."""
        return [
            program("mariadbd", "/usr/sbin"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--tmpdir={self.folder}",
            f"--bind-address={LOOPBACK}",
            f"--port={self.port}",
            "--innodb-flush-log-at-trx-commit=0",
            "--max-allowed-packet=4M",
            "--skip-name-resolve",
        ]

    def start(self) -> None:
        """Start it; the first time make database and user."""
        first = not self.folder.exists()
        super().start()
        if first:
            client = [program("mariadb"), "--no-defaults", f"--socket={self.folder / 'socket'}"]
            self.run(*client, "-u", "root", "-e", f"source {self.folder / 'orders.sql'}")

    def answers(self) -> bool:
        """Whether it takes queries."""
        try:
            client = [
                program("mariadb-admin"),
                "--no-defaults",
                f"--socket={self.folder / 'socket'}",
            ]
            self.run(*client, "-u", "root", "ping")
        except ServiceError:
            return False
        return True

    def environment(self) -> dict[str, str]:
        """A URI as its clients take it."""
        uri = f"mysql://{USER}:{_QUOTED}@{LOOPBACK}:{self.port}/{DATABASE}"
        return {"SEMISTREAM_TEST_MARIADB": uri}
