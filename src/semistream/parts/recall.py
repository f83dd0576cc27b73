"""Recall: the rows of keys that a front stage is told to keep, read in one sweep over R.

Nobody waits for these rows, so the sweep is a bet: it costs about what a task costs that meets
all of R once, and saves the misses by which the front stage would learn the same keys again.
Each partition is read once, the most frequent keys choose which.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from semistream.errors import SemistreamError
from semistream.kernels import CANDIDATE
from semistream.parts.disk_buffer import DiskBuffer, Partition
from semistream.parts.front_stage import FrontStage
from semistream.parts.learned import Learned
from semistream.parts.look_up_set import LookUpSet
from semistream.parts.look_ups import LookUps

__all__ = ["recall"]

_MOST_BYTES: Final = 1 << 30
"""A sweep reads no more of R than this."""

Numbers = NDArray[np.int64]


def recall(
    front: FrontStage,
    learned: Learned,
    disk: DiskBuffer,
    look_ups: LookUps | None,
    page_bytes: float,
) -> None:
    """Keep the learned keys that are not kept yet, as far as there is room.

    A page of R has `page_bytes`. A page that cannot be read ends the sweep: the error belongs to
    whoever needs the page.
    """
    # A hint may name a code twice; its rows must not be kept twice.
    learned = learned.chosen(np.sort(np.unique(learned.codes, return_index=True)[1]))
    learned.codes.flags.writeable = False
    lacking = front.kept.lacks(learned.codes)
    learned = learned.chosen(lacking).chosen(slice(front.room_for_codes))
    if not len(learned.codes):
        return
    try:
        _sweep(front, learned, disk, look_ups, page_bytes)
    except (SemistreamError, OSError):
        pass
    finally:
        front.restart()


def _sweep(
    front: FrontStage,
    learned: Learned,
    disk: DiskBuffer,
    look_ups: LookUps | None,
    page_bytes: float,
) -> None:
    per_partition = disk.per_partition if look_ups is None else look_ups.partition_pages
    first, last = disk.spans(learned.codes)
    partition = first // per_partition
    # A key that crosses from one partition into the next would need both.
    whole = (first <= last) & (last // per_partition == partition)
    learned, partition = learned.chosen(whole), partition[whole]
    read = _most_wanted(partition, max(1, int(_MOST_BYTES / page_bytes / per_partition)))
    learned, partition = learned.chosen(read), partition[read]
    order = np.lexsort((learned.codes, partition))
    learned, partition = learned.chosen(order), partition[order]
    if look_ups is not None:
        for found in look_ups.sweep(learned.codes, partition):
            front.keep(found, *_in_set(found, learned))
        return
    ends = np.append(np.flatnonzero(np.diff(partition)) + 1, len(partition))
    begin = 0
    for end in ends.tolist():
        rows = disk.read(int(partition[begin]))
        front.keep(rows, *_in_partition(rows, learned.chosen(slice(begin, end))))
        begin = end


def _most_wanted(partition: Numbers, most: int) -> NDArray[np.bool_]:
    """Which keys, the most frequent first, lie in the first `most` partitions that come up."""
    numbers, firsts = np.unique(partition, return_index=True)
    return np.isin(partition, numbers[np.argsort(firsts)[:most]])


def _in_set(found: LookUpSet, learned: Learned) -> tuple[NDArray[np.void], Numbers]:
    """The keys of a look-up set that have rows, as candidates, and their codes."""
    codes, counts = found.codes, found.counts
    by_code = np.argsort(learned.codes)
    at = by_code[np.searchsorted(learned.codes, codes, sorter=by_code)]
    ends = np.cumsum(counts)
    candidates = np.zeros(len(codes), CANDIDATE)
    candidates["first"], candidates["last"] = ends - counts, ends
    candidates["frequency"] = learned.frequency[at]
    return candidates[counts > 0], codes[counts > 0]


def _in_partition(rows: Partition, learned: Learned) -> tuple[NDArray[np.void], Numbers]:
    """The learned keys that lie in a partition whole, as candidates, and their codes."""
    order = np.argsort(rows.codes, kind="stable")
    in_order = rows.codes[order]
    low = np.searchsorted(in_order, learned.codes, side="left")
    count = np.searchsorted(in_order, learned.codes, side="right") - low
    candidates = np.zeros(len(low), CANDIDATE)
    candidates["first"] = order[np.minimum(low, len(order) - 1)]
    candidates["last"] = candidates["first"] + count
    candidates["frequency"] = learned.frequency
    whole = (candidates["first"] >= rows.start) & (candidates["last"] <= rows.stop)
    there = whole & (count > 0)
    return candidates[there], learned.codes[there]
