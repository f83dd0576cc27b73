"""A local Spark session, set up so that Python workers and the driver find each other.

Spark takes `python3` from the PATH for its workers and an address of the machine for its driver;
on a laptop either may be the wrong one. A session that is active already belongs to the user:
it is returned as it is, and nothing of it or of the environment is altered.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from semistream.errors import ConnectorError
from semistream.relation.storage import Location, local_path
from semistream.spark.connectors import resolved
from semistream.spark.java import check_java

__all__ = ["local_session"]

_LOOPBACK: Final = "127.0.0.1"
_OF_JAVA: Final = b"_PYSPARK_DRIVER_CONN_INFO_PATH="
"""What Spark sets for the Java process that it starts, and for no other."""
_CONF: Final = {
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def local_session(
    cores: int | str = "*",
    memory: str = "2g",
    log: Location | None = None,
    connectors: Sequence[str] = (),
    **conf: str,
) -> SparkSession:
    """The active Spark session as it is, or a new one on this machine.

    A new session runs `cores` tasks at a time ("*": one per core) in a Java process of `memory`
    bytes ("2g"), speaks over loopback only, and runs Python workers with this interpreter. The
    messages of Java, of the workers and of Spark's Python side go to the file `log`, by default to
    the terminal. `connectors` names other systems ("kafka", "delta", "iceberg", "postgresql",
    "mariadb"): what the installed Spark needs for them is resolved by its coordinates when it
    starts. `conf` adds Spark settings, and wins: `local_session(**{"spark.ui.enabled": "true"})`.
    A Java process that an earlier, stopped session has left behind keeps its memory, its log and
    its connectors.
    """
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        check_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
    builder = SparkSession.builder.master(f"local[{cores}]").appName("semistream")
    path = None if log is None else local_path(log, "log")
    with (
        resolved(connectors, pyspark.__version__, conf) as settings,
        nullcontext() if path is None else _java_output_to(path),
        _java_ended_with_the_start(),
    ):
        for name, value in {**_CONF, "spark.driver.memory": memory, **settings}.items():
            builder = builder.config(name, value)
        try:
            spark = builder.getOrCreate()
        except PySparkRuntimeError as error:
            if not connectors or "JAVA_GATEWAY_EXITED" not in str(error):
                raise
            raise ConnectorError(
                f"Spark did not start with the connectors {', '.join(connectors)}: some of their "
                "jars could not be resolved. Which, is in Spark's own messages"
                f"{'' if path is None else f' in {path}'}. Without a way to a repository, give the "
                'jars as files: local_session(connectors=…, **{"spark.jars": "a.jar,b.jar"}).'
            ) from error
    if path is not None:
        _python_traces_to(path, spark)
    return spark


@contextmanager
def _java_ended_with_the_start() -> Iterator[None]:
    """End a Java process whose start is interrupted.

    Spark ends it with this process, but only once it could tell how it is reached.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if SparkContext._gateway is None:
            for child in _children():
                with suppress(OSError):
                    if _OF_JAVA in Path(f"/proc/{child}/environ").read_bytes():
                        os.kill(child, signal.SIGTERM)
        raise


def _children() -> list[int]:
    """The processes that this one has started."""
    listed = Path("/proc/self/task").glob("*/children")
    return [int(number) for some in listed for number in some.read_text("ascii").split()]


@contextmanager
def _java_output_to(path: Path) -> Iterator[None]:
    """Send what a Java process started meanwhile prints to this file, as long as it runs."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = {number: os.dup(number) for number in (1, 2)}
    try:
        with open(path, "ab") as file:
            for number in before:
                os.dup2(file.fileno(), number)
        yield
    finally:
        for number, old in before.items():
            os.dup2(old, number)
            os.close(old)


class _FromPy4j(logging.Filter):
    """Takes what py4j logs, by the root logger, to another handler."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self.handler = handler

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record goes on to the root logger's own handlers."""
        if Path(record.pathname).parent.name != "py4j":
            return True
        self.handler.handle(record)
        return False


def _python_traces_to(path: Path, spark: SparkSession) -> None:
    """Send what Spark's Python side logs to this file, as long as this process runs.

    It logs a trace for every connection that breaks when Java is stopped or dies.
    """
    root = logging.getLogger()
    handler = logging.FileHandler(path, delay=True)
    for logger in map(logging.getLogger, ("py4j", "pyspark")):
        for old in [one for one in logger.handlers if isinstance(one, logging.FileHandler)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
        logger.propagate = False
    for former in [one for one in root.filters if isinstance(one, _FromPy4j)]:
        root.removeFilter(former)
        former.handler.close()
    root.addFilter(_FromPy4j(handler))
    # This server is no public part of Spark. By itself it prints to the terminal.
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: logging.getLogger("pyspark.accumulators").error(
            "The connection to Java has ended.", exc_info=True
        )
