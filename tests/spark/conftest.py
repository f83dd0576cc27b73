"""One Spark session for all tests of a process: two cores, loopback, no UI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import semistream as ss
from semistream.spark.session import local_session
from tests.spark.other_session import CONNECT, FAILING, OtherSession

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    # Tests are many small jobs: compiling their plans costs more than running them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class Build(Protocol):
    """Builds a master table of its own."""

    def __call__(
        self, table: pa.Table, key: str | Sequence[str] = "id", **options: Any
    ) -> ss.MasterTable: ...


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session; tests leave it as they found it."""
    folder = tmp_path_factory.mktemp("warehouse")
    # The README's code, which is a test too, leaves a session with other settings.
    left = SparkSession.getActiveSession()
    if left is not None:
        left.stop()
    session = local_session(
        2, "1g", **SETTINGS, **{"spark.sql.warehouse.dir": str(folder / "warehouse")}
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherSession]:
    """A session of Spark Connect, in a process of its own."""
    pytest.importorskip("grpc")
    session = OtherSession(CONNECT, tmp_path_factory.mktemp("connect") / "log")
    yield session
    session.close()


@pytest.fixture(scope="session")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherSession]:
    """A session that tries tasks again, in a process of its own."""
    session = OtherSession(FAILING, tmp_path_factory.mktemp("failing") / "log")
    yield session
    session.close()


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Builds a master table in small pages, so that a few dozen rows make several."""
    built = iter(range(1000))

    def make(table: pa.Table, key: str | Sequence[str] = "id", **options: Any) -> ss.MasterTable:
        path = tmp_path / f"{next(built)}.master"
        return ss.MasterTable.from_arrow(table, path, key=key, **({"page_bytes": 4096} | options))

    return make
