"""What the commands use of Spark: a session, files as DataFrames, and its errors."""

from __future__ import annotations

import atexit
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from semistream.errors import OptionError, SemistreamError, SourceError, SparkLostError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["file_format", "naming_log", "read_frame", "spark_errors", "spark_session"]

_FORMATS: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".orc": "orc",
}
_OF_JAVA: Final = re.compile(r"\s+(?:at \S+\(|\.\.\. \d+ more)|Caused by: ")
"""A line of a Java trace."""
_COMPRESSED: Final = (".gz", ".bz2", ".zst")


def spark_session(
    log: Path | None = None, connectors: Sequence[str] = (), **conf: str
) -> SparkSession:
    """The active session, or a quiet local one that knows the format "semistream"."""
    from semistream.spark.session import local_session
    from semistream.spark.source import register_source

    # This logger would print, as JSON, what the error message says anyway.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    settings = {"spark.sql.shuffle.partitions": str(os.cpu_count() or 2)} | conf
    spark = local_session(log=log, connectors=connectors, **settings)
    register_source(spark)
    return spark


@contextmanager
def naming_log(log: Path) -> Iterator[None]:
    """An error names this file, if it has any messages; `spark_session(log=…)` sends them there."""
    try:
        yield
    except SemistreamError as error:
        if log.is_file() and log.stat().st_size:
            error.args = (f"{error} Spark's own messages are in {log}.",)
        raise


def file_format(path: str) -> str:
    """The file format that a path's suffix stands for; Parquet if there is no suffix."""
    stem = path.rstrip("/").lower()
    for suffix in _COMPRESSED:
        stem = stem.removesuffix(suffix)
    suffix = os.path.splitext(stem)[1]
    if not suffix:
        return "parquet"
    if suffix not in _FORMATS:
        from semistream.relation.storage import without_secrets

        raise OptionError(
            f"{without_secrets(path)} ends in {suffix!r}, which stands for no format here. Use "
            f"one of: {', '.join(_FORMATS)}; a folder of Parquet files needs no suffix."
        )
    return _FORMATS[suffix]


def read_frame(path: str) -> DataFrame:
    """The rows of a file, or of a folder of files, as Spark reads them."""
    from semistream.relation.storage import without_secrets

    form = file_format(path)
    reader = spark_session(log=_passing_log()).read.format(form)
    if form == "csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    with spark_errors(without_secrets(path)):
        return reader.load(path)


def _passing_log() -> Path:
    """A file for Spark's own messages, gone when the command ends; an error says what counts."""
    log = Path(tempfile.gettempdir()) / f"semistream-{os.getpid()}.log"
    atexit.register(log.unlink, missing_ok=True)
    return log


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn Spark's exceptions into an error of one line."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    from semistream.relation.storage import harmless

    try:
        yield
    except PySparkException as error:
        _raise_misfit(error)
        raise SourceError(f"{what}: Spark says: {_said(str(error))}") from harmless(error)
    except Py4JJavaError as error:
        _raise_misfit(error)
        # Errors without a Python class in Spark, such as an unknown format.
        said = str(error.java_exception.getMessage())
        raise SourceError(f"{what}: Spark says: {_said(said)}") from harmless(error)
    except (Py4JError, ConnectionError) as error:
        raise SparkLostError(
            f"{what}: Spark's Java process has ended; it may have been killed, or have run out of "
            "memory. Run it again."
        ) from error


def _raise_misfit(error: Exception) -> None:
    """Raise a `ConnectorError` if a jar of the session was made for another Spark."""
    from pyspark import __version__ as spark_version

    from semistream.spark.connectors import misfit

    clear = misfit(f"{error}\n{getattr(error, '_stackTrace', '')}", spark_version)
    if clear is not None:
        raise clear from error


def _said(message: str) -> str:
    """The part of Spark's message that helps a user: the last line, if it is a traceback."""
    from semistream.relation.storage import scrubbed

    text = message.partition("JVM stacktrace:")[0].partition("Driver stacktrace:")[0].strip()
    lines = [line for line in text.splitlines() if line.strip() and not _OF_JAVA.match(line)]
    text = "\n".join(lines)
    if any(line.lstrip().startswith("Traceback (most recent") for line in lines):
        text = next(line for line in reversed(lines) if "SQLSTATE" not in line)
    # Leave out the query plan that follows a missing column, and the class name of our own errors.
    return scrubbed(re.sub(r"^semistream\.errors\.\w+: ", "", text.partition(";\n'")[0]))
