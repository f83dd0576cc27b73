"""Letting an unfinished batch go on with other versions of its masters than it began with.

A batch keeps to the versions on its record, so that it gives the same rows whenever it runs. If one
of them is damaged for good, it can never be joined. As long as it is not staged, nothing of it has
been handed to a sink, and it may be decided anew: with the newest versions, and the same tuples.
"""

from __future__ import annotations

from dataclasses import dataclass

from semistream.errors import CheckpointError, SemistreamError
from semistream.relation import MasterTable
from semistream.relation.storage import Location, without_secrets
from semistream.spark.pipeline.about import read_about
from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, pinned_versions
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.lease import Lease

__all__ = ["Unpinned", "unpin"]


@dataclass(frozen=True)
class Unpinned:
    """A batch that is no longer bound to versions."""

    record: BatchRecord
    """What it was bound to."""
    kept: str
    """Where that record still is, for people to look at."""


def unpin(checkpoint: Location) -> Unpinned:
    """Let the unfinished batch of a checkpoint take the newest versions when it runs again.

    `CheckpointError` while the pipeline runs; if there is no such batch; if it is staged, for then
    it needs no master, and some of it may be written; and if there is no newer version to take.
    """
    if not pinned_versions(checkpoint):
        raise CheckpointError(
            f"No pipeline has run a batch with the checkpoint {without_secrets(checkpoint)}. Give "
            "the folder that the pipeline has as its checkpoint."
        )
    home = Folder.at(checkpoint) / "semistream"
    place = home.local or home.spark
    lease = Lease.take(place, "unpin")
    try:
        log = BatchLog(place)
        record = log.unfinished
        if record is None:
            raise CheckpointError(
                f"All batches of {without_secrets(checkpoint)} are finished: the next one takes "
                "the newest versions by itself. Start the pipeline again."
            )
        if (home / "staging" / str(record.number)).note() is not None:
            raise CheckpointError(
                f"Batch {record.number} is joined already, and may be written in part: it needs no "
                "master, and must not be joined again. Start the pipeline again."
            )
        _check_newer(checkpoint, record)
        return Unpinned(record, log.withdraw(record))
    finally:
        lease.release()


def _check_newer(checkpoint: Location, record: BatchRecord) -> None:
    """Raise if the masters are known, and none has a newer version than the batch."""
    about = read_about(checkpoint)
    bound = dict(record.versions) or {"": record.version}
    for name, version in bound.items():
        try:
            if MasterTable.latest_version(about.masters[name] if about else "") != version:
                return
        except (SemistreamError, KeyError, OSError):
            # Where it is, is told for people to read. The pipeline will see.
            return
    raise CheckpointError(
        f"Batch {record.number} began with the newest version, and there is no other to take. "
        "Build the master anew, or mend its files, first."
    )
