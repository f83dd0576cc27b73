"""What a step works on: waiting tuples, arrivals, R, and how far it has come."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import Chains
from semistream.kernels.compiling import kernel
from semistream.kernels.queue import Links
from semistream.kernels.reading import PageList
from semistream.kernels.ring import Ring

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]

(
    PHASE,
    TAKEN,
    IS_DRY,
    WANTED,
    PARTITION,
    BEHIND,
    BUCKET,
    CODE,
    PAGE,
    ROW,
    SLOT,
    WAITS,
    FIRST_PAGE,
    FIRST_ROW,
    PART_BEGUN,
    PAIRS,
    CANDIDATES,
    REMOVED,
    READ_UNTIL,
    IN_FRAME,
    UNSOUND,
    LEFT,
    STATES,
) = range(23)
"""What `Step.state` holds: the phase of the iteration under way, and where in it.

Arrivals taken, and whether no more will come; the code looked up, the partition under way and
the one behind its last (none: it is pinned); the bucket, the first slot of its code, page, row and
slot being paired; the tuples that wait for the code, its first page and row; whether rows that
cross an edge are being joined; pairs and candidates of the partition; whether its tuples are
removed; the page behind the last one read; the partition that the caller has put into the
frame; a page that is not what the index says; and how many more tuples may enter a scan's window
now.
"""

(
    ITERATIONS,
    READS,
    SEQUENTIAL,
    PAGES,
    BYTES,
    PROBES,
    HASH_PROBES,
    PARTITION_PROBES,
    MATCHES,
    APPENDS,
    DELETES,
    LONELY,
    WAITED,
    WAS_FULL,
    COUNTS,
) = range(15)
"""What `Step.counts` holds."""


class Waiting(NamedTuple):
    """The stream table, the arrival queue, and scratch for slots."""

    chains: Chains
    fences: Codes
    queue: Links
    slots: Numbers
    lonely: Numbers


class Window(NamedTuple):
    """The same for a scan: its ring instead of a queue, and `w` tuples that enter at a time."""

    chains: Chains
    fences: Codes
    ring: Ring
    slots: Numbers
    lonely: Numbers
    w: int


class Arriving(NamedTuple):
    """Tuples that may come in: their codes, and where their columns are and will be kept.

    Addresses and widths in bytes of a column each. `flags` is empty as long as no tuple had a null.
    """

    codes: Codes
    columns: Codes
    kept: Codes
    widths: Codes
    flags: NDArray[np.uint8]
    kept_flags: NDArray[np.uint8]


class Relation(NamedTuple):
    """R: its pages' codes, rows and places, and the frame for a partition of some pages.

    `fields` are the columns of the pages in the frame (see `rows.FIELD`), `pinned` those of the
    partitions that are in memory, the first ones of R: each of them is one page. `in_order`:
    rows are in the order of their codes.
    """

    first: Codes
    last: Codes
    rows: Numbers
    file: Numbers
    pages: PageList
    descriptors: Codes
    grain: int
    per_partition: int
    widths: Codes
    code: int
    in_order: bool
    frame: int
    fields: Any
    pinned: Any
    pinned_rows: Numbers


class Step(NamedTuple):
    """Where a step is, and what it has counted.

    `read` lists the partitions read; codes that `threshold` tuples matched go to `candidates`, and
    an observer is called when so many partitions were read (`tick`) in any case.
    """

    state: Codes
    counts: Codes
    histogram: Codes
    read: Codes
    threshold: float
    tick: int
    candidates: Any
    now: int
    most: int


@kernel
def page_range(relation: Relation, partition: int) -> tuple[int, int]:
    """The first page of a partition, and the one behind its last."""
    first = partition * relation.per_partition
    return first, min(first + relation.per_partition, len(relation.first))
