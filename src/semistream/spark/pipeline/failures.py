"""What a pipeline failed with, as an error that says what happened and how to go on."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import __version__ as spark_version
from pyspark.errors import PySparkException

from semistream import errors
from semistream.errors import SemistreamError, SparkLostError
from semistream.relation.storage import harmless, scrubbed, storage_error
from semistream.spark.connectors import misfit
from semistream.spark.pipeline.kafka_source import KafkaSource, explained_by_kafka
from semistream.spark.pipeline.sinks import CallableSink

__all__ = ["explained"]

_OURS: Final = re.compile(r"^semistream\.errors\.(\w+): (.+)$", re.MULTILINE)
"""How an error of ours that a Python worker raised shows in Spark's message."""
_SILENT: Final = re.compile(r"Answer from Java side is empty|^An error occurred while calling \S+$")
"""How a call into Java ends that gets no answer."""
_WORKER_DIED: Final = re.compile(
    r"Python worker (exited unexpectedly|failed to connect back)|ExecutorLostFailure|"
    r"Executor \S+ (exited|disassociated)|Remote RPC client disassociated|"
    r"api\.python\.PythonWorkerFactory"
)
_REFUSED: Final = re.compile(
    r"^(?:OSError|PermissionError|FileNotFoundError): \[Errno (\d+)\] (.+)$", re.MULTILINE
)
"""How an error of the operating system in a Python worker shows in Spark's message."""
_JAVA_REFUSED: Final = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "Mkdirs failed to create": errno.EIO,
}
"""What Java says when it cannot write. Why a folder cannot be made, it does not say."""
_JAVA_PLACE: Final = re.compile(
    r"(?:writing rows to|Mkdirs failed to create|FileSystemException:) (?:file:)?(/[^\s:()]+)"
)
_STOPPED: Final = re.compile("stopped SparkContext|SparkContext was shut down")
"""Java was told to end, as by a signal to all processes of a service."""
_TRIES: Final = re.compile(r" failed (\d+) times")
_GO_ON: Final = (
    "All finished batches are written, and nothing is lost: start a pipeline with the same "
    "checkpoint to go on."
)


def explained(error: BaseException, name: str, kafka: Sequence[KafkaSource] = ()) -> BaseException:
    """The error itself if it is clear; else one of ours in its place, with it as the cause.

    `kafka` has the topics that the pipeline reads.
    """
    if isinstance(error, SemistreamError):
        return error
    made = _misfit(error) or _refused_by_java(error, name) or _lost(error, name)
    made = made or _from_worker(error) or explained_by_kafka(error, name, kafka)
    made = made or _refused(error, name)
    if made is None and harmless(error) is None:
        made = SemistreamError(f"The pipeline {name} has failed: {scrubbed(str(error))}")
    if made is None:
        return error
    made.__cause__ = harmless(error)
    # Without a cause, Python would show the error that this one was made from.
    made.__suppress_context__ = True
    return made


def _misfit(error: BaseException) -> SemistreamError | None:
    """If a jar of the session was made for another Spark."""
    if not isinstance(error, PySparkException | Py4JJavaError):
        return None
    # This trace is no public part of Spark.
    return misfit(f"{error}\n{getattr(error, '_stackTrace', '')}", spark_version)


def _lost(error: BaseException, name: str) -> SemistreamError | None:
    """If Spark's Java process or a Python worker has died."""
    silent = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    if (
        isinstance(error, Py4JNetworkError)
        or (isinstance(error, ConnectionError) and not _is_users(error))
        or (silent and _SILENT.search(str(error)))
    ):
        return SparkLostError(
            f"Spark's Java process has ended while the pipeline {name} ran; it may have been "
            f"killed, or have run out of memory. {_GO_ON}"
        )
    if _STOPPED.search(str(error)):
        return SparkLostError(f"Spark was stopped while the pipeline {name} ran. {_GO_ON}")
    if _WORKER_DIED.search(str(error)):
        tries = _TRIES.search(str(error))
        often = f"; Spark tried its task {tries[1]} times" if tries and tries[1] != "1" else ""
        return SparkLostError(
            f"A worker process of Spark has ended while the pipeline {name} ran{often}. It may "
            f"have been killed, or have run out of memory. {_GO_ON}"
        )
    return None


def _refused_by_java(error: BaseException, name: str) -> SemistreamError | None:
    """If a disk does not let Spark itself write: its checkpoint, its files, or rows of a sink."""
    if not isinstance(error, PySparkException | Py4JJavaError):
        return None
    # The reason is often that of an exception below. This trace is no public part of Spark.
    text = f"{error}\n{getattr(error, '_stackTrace', '')}"
    said = next((word for word in _JAVA_REFUSED if word in text), None)
    if said is None or _OURS.search(text) or _REFUSED.search(text):
        return None
    place = _JAVA_PLACE.search(text)
    what = f"Spark could not write what the pipeline {name} gave it"
    what += "" if place is None else f", at {place[1].rstrip('.')}"
    why = "a folder could not be made" if said.startswith("Mkdirs") else said
    return storage_error(OSError(_JAVA_REFUSED[said], why), what, f"{_GO_ON} ")


def _refused(error: BaseException, name: str) -> SemistreamError | None:
    """If a disk, or a network, has refused to be read or written, here or in a worker."""
    if isinstance(error, OSError) and not _is_users(error):
        return storage_error(error, f"The pipeline {name} could not use its files", f"{_GO_ON} ")
    found = _REFUSED.search(str(error))
    if found is None:
        return None
    what = f"A worker of the pipeline {name} could not use its files"
    return storage_error(OSError(int(found[1]), found[2]), what, f"{_GO_ON} ")


def _is_users(error: BaseException) -> bool:
    """Whether the function of a user's sink raised it, and not Spark below it."""
    trace, is_in_sink = error.__traceback__, False
    while trace is not None:
        code = trace.tb_frame.f_code
        is_in_sink |= code is CallableSink.write.__code__
        if is_in_sink and "py4j" in code.co_filename:
            return False
        trace = trace.tb_next
    return is_in_sink


def _from_worker(error: BaseException) -> SemistreamError | None:
    """If one of our errors was raised in a Python worker: the same error."""
    found = _OURS.search(str(error))
    kind = None if found is None else getattr(errors, found[1], None)
    if found is None or not (isinstance(kind, type) and issubclass(kind, SemistreamError)):
        return None
    return kind(found[2].strip())
