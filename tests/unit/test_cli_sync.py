"""`semistream master sync` on a table that is polled: what it asks Spark for, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from typer.testing import CliRunner

import semistream as ss
from semistream import cli

FILE = """
[source]
format = "jdbc"
[source.options]
url = "jdbc:postgresql://${{DB_HOST}}/shop"
user = "me"
password = "${{DB_PASSWORD}}"
dbtable = "goods"
[master]
path = "{folder}/goods.master"
[sync]
sequence_by = "updated_at"
log = "{folder}/log"
[spark]
connectors = ["postgresql"]
"""
REFUSED = """org.apache.spark.SparkSQLException: [FAILED_JDBC.CONNECTION] Failed JDBC
\tat org.apache.spark.sql.jdbc.JdbcDialect.x(JdbcDialects.scala:1)
Caused by: org.postgresql.util.PSQLException: FATAL: password "geheim" is not that of "me"
\tat org.postgresql.core.x(Y.java:1)
"""
NO_DRIVER = "java.lang.ClassNotFoundException: org.postgresql.Driver"


class Refusing:
    """A reader of Spark's, and the session that has it: it keeps its options, and fails."""

    def __init__(self, trace: str) -> None:
        self.read = self
        self.given: dict[str, Any] = {}
        self._trace = trace

    def format(self, _: str) -> Refusing:
        return self

    def options(self, **given: Any) -> Refusing:
        self.given = given
        return self

    def load(self) -> None:
        error = PySparkException("Couldn't connect")
        error._stackTrace = self._trace  # type: ignore[attr-defined]
        raise error


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (REFUSED, "The table goods at jdbc:postgresql://db/shop cannot be read: FATAL: passw"),
        (NO_DRIVER, 'no driver for jdbc:postgresql://db/shop. Add connectors = ["postgresql"] to'),
    ],
)
def test_variables_are_filled_in_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: str, said: str
) -> None:
    goods = pa.table({"id": [1], "name": ["ball"]})
    ss.MasterTable.from_arrow(goods, tmp_path / "goods.master", key="id")
    (tmp_path / "sync.toml").write_text(FILE.format(folder=tmp_path))
    monkeypatch.setenv("DB_HOST", "db")
    monkeypatch.setenv("DB_PASSWORD", "geheim")
    spark = Refusing(trace)
    monkeypatch.setattr("semistream.cli.sync.spark_session", lambda *_, **__: spark)
    result = CliRunner().invoke(cli.app, ["master", "sync", str(tmp_path / "sync.toml"), "--once"])
    assert (spark.given["url"], spark.given["password"]) == ("jdbc:postgresql://db/shop", "geheim")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert said in line
    assert "geheim" not in line
