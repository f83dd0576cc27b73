"""What a pipeline says of itself while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semistream.spark.pipeline.batch_log import Counts

__all__ = ["Status"]


@dataclass(frozen=True)
class Status:
    """The state of a pipeline, and what its batches have done."""

    name: str
    state: str
    """"new", "running", "finished", "stopped" or "failed"."""
    error: str | None
    """What it failed with."""
    batch: int | None
    """The number of the last batch that is done, which the following fields are about."""
    version: int | None
    """The master's version."""
    counts: Counts
    totals: Counts
    """Those of all batches since the checkpoint began."""
    ended_unmatched: int
    """Tuples of all batches that have ended unmatched. Each tuple of the source is
    joined, rejected, one of these, or waiting."""
    seconds: float
    waiting_retry: int
    """Stream tuples in the retry queue now."""
    waiting_deferred: int
    """Stream tuples in the deferred queue now."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The version of each look-up's master, by name, if there are several; `version` is then their
    sum."""
