"""What a pipeline failed with, made clear: our own errors from workers, dead processes."""

from __future__ import annotations

import traceback

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PythonException, SparkRuntimeException

from semistream.errors import (
    ConnectorError,
    CorruptPageError,
    SemistreamError,
    SinkError,
    SparkLostError,
    StorageError,
)
from semistream.spark.pipeline.failures import explained
from semistream.spark.pipeline.sinks import CallableSink

TRACE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "reader.py", line 7, in read
    raise CorruptPageError(
semistream.errors.CorruptPageError: Page 3 of goods/0.arrow is broken. Build it again.
"""


def test_our_own_error_stays() -> None:
    error = SinkError("not yours")
    assert explained(error, "shop") is error


def test_our_error_from_a_worker_is_that_error_again() -> None:
    cause = PythonException(TRACE)
    found = explained(cause, "shop")
    assert type(found) is CorruptPageError
    assert str(found) == "Page 3 of goods/0.arrow is broken. Build it again."
    assert found.__cause__ is cause


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
def test_a_dead_java_process_is_said_to_be_dead(error: BaseException) -> None:
    found = explained(error, "shop")
    assert type(found) is SparkLostError
    assert "Java process has ended" in str(found)
    assert "same checkpoint to go on" in str(found)


def test_a_worker_that_dies_again_and_again() -> None:
    text = "Job aborted … java.io.EOFException: Python worker exited unexpectedly (crashed)"
    found = explained(SparkRuntimeException(text), "shop")
    assert type(found) is SparkLostError
    assert "worker process" in str(found)


@pytest.mark.parametrize("error", [ValueError("the user's own"), SparkRuntimeException("else")])
def test_what_is_not_known_stays_as_it_is(error: BaseException) -> None:
    assert explained(error, "shop") is error


def test_a_name_that_is_no_error_of_ours_is_not_followed() -> None:
    error = PythonException("\nsemistream.errors.annotations: x\n")
    assert explained(error, "shop") is error
    assert not isinstance(error, SemistreamError)


def test_a_worker_that_died_once_is_not_said_to_have_died_often() -> None:
    died = "java.io.EOFException: Python worker exited unexpectedly (crashed)"
    once = explained(SparkRuntimeException(f"Task 0 in stage 3.0 failed 1 times: {died}"), "shop")
    often = explained(SparkRuntimeException(f"Task 0 in stage 3.0 failed 4 times: {died}"), "shop")
    assert "times" not in str(once)
    assert "again and again" not in str(once)
    assert "Spark tried its task 4 times" in str(often)


def test_a_full_disk_is_a_storage_error_here_and_in_a_worker() -> None:
    here = explained(OSError(28, "No space left on device", "/out/x"), "shop")
    trace = "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device: '/x'"
    there = explained(PythonException(trace), "shop")
    for found in (here, there):
        assert type(found) is StorageError
        assert found.errno == 28
        assert "No space left" in str(found)
        assert "same checkpoint to go on" in str(found)
        assert "Make room" in str(found)


@pytest.mark.parametrize(
    ("text", "number", "place"),
    [
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
            "No space left on device SQLSTATE: XXKST",
            28,
            "",
        ),
        (
            "[TASK_WRITE_FAILED] Task failed while writing rows to file:/out/_writing.3. "
            "SQLSTATE: 58030\n\tat x\nCaused by: java.io.IOException: No space left on device\n"
            "\tat org.apache.spark.api.python.PythonWorkerFactory.create(x.scala:1)",
            28,
            "/out/_writing.3",
        ),
        ("java.nio.file.FileSystemException: /c/.1.tmp: Disk quota exceeded", 122, "/c/.1.tmp"),
        ("java.io.FileNotFoundException: /out/x (Read-only file system)", 30, ""),
        ("java.io.IOException: Mkdirs failed to create file:/out/_t (exists=false)", 5, "/out/_t"),
    ],
)
def test_a_disk_that_refuses_java_is_one_line_that_says_so(
    text: str, number: int, place: str
) -> None:
    for error in (SparkRuntimeException(text), SparkRuntimeException("Job aborted.")):
        error._stackTrace = text  # type: ignore[attr-defined]
        found = explained(error, "shop")
        assert type(found) is StorageError
        assert found.errno == number
        assert place in str(found)
        assert "same checkpoint to go on" in str(found)
        assert "\n" not in str(found)
        assert "SQLSTATE" not in str(found)


def test_our_own_error_from_a_worker_is_told_though_spark_tells_of_the_disk_too() -> None:
    ours = "semistream.errors.StorageError: /m cannot be written: No space left on device. Do so."
    found = explained(PythonException(f"Traceback:\n{ours}\n"), "shop")
    assert str(found) == "/m cannot be written: No space left on device. Do so."


def test_what_the_users_own_sink_raises_stays_as_it_is() -> None:
    class GoneError(ConnectionError):
        pass

    def write(*_: object) -> None:
        raise GoneError("the warehouse")

    with pytest.raises(GoneError) as raised:
        CallableSink(write).write(None, 3, "x")  # type: ignore[arg-type]
    assert explained(raised.value, "shop") is raised.value


def test_what_spark_says_of_a_uri_is_told_without_its_secrets() -> None:
    error = SparkRuntimeException("[PATH_NOT_FOUND] s3a://KEY:GEHEIM@bucket/x is not there")
    found = explained(error, "shop")
    assert isinstance(found, SemistreamError)
    assert "s3a://bucket/x is not there" in str(found)
    found.__context__ = error
    assert "GEHEIM" not in "".join(traceback.format_exception(found))


@pytest.mark.parametrize(
    "text",
    [
        "Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext was created at:",
        "Job 3 cancelled because SparkContext was shut down",
    ],
)
def test_a_spark_that_was_stopped_is_said_to_be_stopped(text: str) -> None:
    found = explained(SparkRuntimeException(text), "shop")
    assert type(found) is SparkLostError
    assert "Spark was stopped while the pipeline shop ran" in str(found)


def test_the_process_that_starts_workers_counts_as_one() -> None:
    text = (
        "Task 1 in stage 2.0 failed 1 times: java.io.IOException: Stream closed\n"
        "\tat org.apache.spark.api.python.PythonWorkerFactory.createThroughDaemon(x.scala:1)"
    )
    assert "A worker process" in str(explained(SparkRuntimeException(text), "shop"))


def test_a_jar_that_was_made_for_another_spark_is_told_in_words() -> None:
    said = "java.lang.NoSuchMethodError: 'x' at org.apache.spark.sql.delta.files.Y.z(Y.scala:1)"
    clear = explained(SparkRuntimeException(said), "shop")
    assert isinstance(clear, ConnectorError)
    assert str(clear).startswith("The delta connector in this session was made for another")
