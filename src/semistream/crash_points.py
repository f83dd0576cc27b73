"""Crash points: the named steps of what must survive a kill, where tests let a process end.

`reached` does nothing unless the environment says so when this module is first imported:

    SEMISTREAM_CRASH_AT=shed.cursor       the process ends there, as by `kill -9`
    SEMISTREAM_CRASH_AT=shed.cursor:3     when it gets there for the third time
    SEMISTREAM_CRASH_MARK=/tmp/mark       this file is made just before; while it is there, nothing
                                          ends, so that work that is tried again is done
"""

from __future__ import annotations

import os
import signal
from typing import Final

__all__ = ["POINTS", "arm", "reached"]

POINTS: Final = {
    # A master table: build, upsert, delete and compact.
    "draft.begun": "the folders are there",
    "build.pages": "the pages are written",
    "build.index": "the page index is written",
    "build.filter": "the filter is written",
    "locator.pages": "the pages of a locator are written, by a build or an update",
    "update.pages": "the touched pages are written anew",
    "update.index": "the page index is written",
    "update.filter": "the filter is written",
    "manifest.checked": "all files are there, the manifest is not",
    "manifest.published": "the version is visible",
    "task.pages": "a task of a build on Spark has written its pages",
    "job.swept": "a build on Spark has removed files of tasks that ran twice",
    # A master that follows its source.
    "sync.booked": "the book has the changes, the master has not",
    "sync.committed": "both have them",
    # Any small file that appears at once: manifests, the batch log, the lease.
    "publish.hidden": "its bytes are on the disk under a hidden name",
    "publish.linked": "it has its name; the hidden one is still there",
    "vacuum.chosen": "nothing is removed yet",
    "vacuum.manifests": "old manifests are removed, their files are not",
    "vacuum.files": "all is removed",
    # A pipeline: who runs it, what a batch takes in, and its outcome.
    "lease.taken": "the turn is published, files of earlier ones are there",
    "lease.beaten": "a new beat is written, the old one is there",
    "lease.released": "the turn is over",
    "log.begun": "a batch is on record",
    "log.finished": "a batch has an outcome",
    "log.forgotten": "the log has dropped an old batch",
    # A batch, from its tasks to its queues.
    "task.files": "a task has written its files and has not told of them",
    "stage.told": "all tasks have told what they wrote",
    "stage.moved": "their files are moved to where they belong",
    "folder.written": "a folder has all files under a hidden name",
    "folder.noted": "it has its note too",
    "folder.moved": "it has its own name",
    "become.cleared": "nothing is left of an earlier try to hand a folder over",
    "become.noted": "the folder has its note and its old name",
    "become.moved": "the folder is handed over",
    "database.rows": "a database has all rows of a batch, not committed",
    "database.committed": "they are committed",
    "deliver.sink": "a sink has all rows of the batch",
    "deliver.all": "all sinks have their rows",
    "queue.put": "tuples of a route are in their queue",
    "clean.queues": "entries that the batch took in are removed",
    "clean.staging": "what was staged is removed",
    "note.hidden": "a note is written under a hidden name",
    # What was shed.
    "shed.opened": "a segment is begun; the cursor does not know of it",
    "shed.appended": "tuples are in the segment",
    "shed.cursor": "a new cursor is written under a hidden name",
    "shed.struck": "the cursor has struck tuples off; segments that are done are still there",
    "shed.sealed": "a segment is whole; the cursor does not know of it",
    "shed.mended": "the whole batches of a damaged segment are written under a hidden name",
    "shed.aside": "a damaged segment has a second name",
    # What a front stage has learned.
    "learned.hidden": "the file is written under a hidden name",
    "learned.replaced": "the file is new",
}
"""Each point, with what has happened when it is reached."""

_MARK: Final = "SEMISTREAM_CRASH_MARK"

_point: str | None = None
_left, _mark = 1, ""


def arm(at: str, mark: str = "") -> None:
    """Let this process end at a point; `at` and `mark` are as in the environment."""
    global _point, _left, _mark
    name, _, times = at.partition(":")
    if name not in POINTS:
        raise ValueError(f"SEMISTREAM_CRASH_AT={at!r} names no crash point.")
    _point, _left, _mark = name, int(times or 1), mark


def reached(point: str) -> None:
    """A step is done; goes on unless a test wants the process to end here."""
    if _point is not None and _point == point:
        _count_down()


def _count_down() -> None:
    global _left
    _left -= 1
    if _left > 0:
        return
    if _mark:
        try:
            os.close(os.open(_mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except OSError:
            return
    os.kill(os.getpid(), signal.SIGKILL)


if _told := os.environ.get("SEMISTREAM_CRASH_AT"):
    arm(_told, os.environ.get(_MARK, ""))
