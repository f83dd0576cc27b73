"""What a pipeline failed with, made clear: our own errors from workers, dead processes."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PythonException, SparkRuntimeException

from semistream.errors import CorruptPageError, SemistreamError, SinkError, SparkLostError
from semistream.spark.pipeline.failures import explained

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
