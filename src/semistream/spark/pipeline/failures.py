"""What a pipeline failed with, as an error that says what happened and how to go on."""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from semistream import errors
from semistream.errors import SemistreamError, SparkLostError

__all__ = ["explained"]

_OURS: Final = re.compile(r"^semistream\.errors\.(\w+): (.+)$", re.MULTILINE)
"""How an error of ours that a Python worker raised shows in Spark's message."""
_WORKER_DIED: Final = re.compile(
    r"Python worker (exited unexpectedly|failed to connect back)|ExecutorLostFailure|"
    r"Executor \S+ (exited|disassociated)|Remote RPC client disassociated"
)
_GO_ON: Final = (
    "All finished batches are written, and nothing is lost: start a pipeline with the same "
    "checkpoint to go on."
)


def explained(error: BaseException, name: str) -> BaseException:
    """The error itself if it is clear; else one of ours in its place, with it as the cause."""
    if isinstance(error, SemistreamError):
        return error
    made = _lost(error, name) or _from_worker(error)
    if made is None:
        return error
    made.__cause__ = error
    return made


def _lost(error: BaseException, name: str) -> SemistreamError | None:
    """If Spark's Java process or a Python worker has died."""
    silent = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    if isinstance(error, Py4JNetworkError | ConnectionError) or (
        silent and "Answer from Java side is empty" in str(error)
    ):
        return SparkLostError(
            f"Spark's Java process has ended while the pipeline {name} ran; it may have been "
            f"killed, or have run out of memory. {_GO_ON}"
        )
    if _WORKER_DIED.search(str(error)):
        return SparkLostError(
            f"A worker process of Spark has ended, again and again, while the pipeline {name} "
            f"ran; it may have been killed, or have run out of memory. {_GO_ON}"
        )
    return None


def _from_worker(error: BaseException) -> SemistreamError | None:
    """If one of our errors was raised in a Python worker: the same error."""
    found = _OURS.search(str(error))
    kind = None if found is None else getattr(errors, found[1], None)
    if found is None or not (isinstance(kind, type) and issubclass(kind, SemistreamError)):
        return None
    return kind(found[2].strip())
