"""Tuple table: what stream tables have in common, however they find their tuples."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream import kernels
from semistream.budget import Grant
from semistream.metrics import Recorder
from semistream.parts.tuple_store import TupleStore

_CACHED: Final = 16 << 20
"""Bytes of a table that the processor's caches hold, about."""


def uncached_share(table_bytes: int) -> float:
    """The share of a table that the processor's caches do not hold."""
    return max(0.0, 1 - _CACHED / max(table_bytes, 1))


class TupleTable:
    """Waiting tuples by slot: their columns, and nodes that have at least a code and a stamp.

    The stamp is the time of entry in even microseconds, made odd when the tuple has matched.
    """

    slot_bytes: ClassVar[int]
    """Bytes that a slot takes beside the tuple's columns."""

    def __init__(
        self, store: TupleStore, capacity: int, scratch: int, grant: Grant, recorder: Recorder
    ) -> None:
        """With so many slots, whose bytes are granted already.

        Of at most `scratch` tuples at a time is noted which have no match.
        """
        self.store = store
        self.capacity = capacity
        self._grant = grant
        self._recorder = recorder
        self._lonely = np.empty(scratch, np.int32)

    @property
    def nodes(self) -> NDArray[Any]:
        """The nodes, by slot."""
        raise NotImplementedError

    def count_appends(self, count: int) -> None:
        """So many tuples have begun to wait."""
        self._recorder.appends += count
        self._recorder.uncached += round(count * uncached_share(self._grant.bytes))

    def resize(self, capacity: int, heap_bytes: int) -> None:
        """Have more or fewer slots; those beyond must be free."""
        more = (capacity - self.capacity) * self.slot_bytes
        if more > 0:
            self._grant.take(more)
        self.nodes.resize(capacity, refcheck=False)
        self.store.resize(capacity, heap_bytes)
        if more < 0:
            self._grant.give(-more)
        self.capacity = capacity

    def code(self, slot: int) -> int:
        """The code of the tuple in `slot`."""
        return int(self.nodes[slot]["code"])

    def entered(self, slot: int) -> int:
        """When the tuple in `slot` entered, as `Recorder.micros` counts."""
        return int(self.nodes[slot]["stamp"]) & 0xFFFFFFFE

    def codes(self, slots: NDArray[np.int32]) -> NDArray[np.int64]:
        """The codes of the tuples in `slots`."""
        codes = np.empty(len(slots), np.int64)
        kernels.gather_codes(self.nodes, slots, codes)
        return codes

    def gather(self, slots: NDArray[np.int32]) -> pa.RecordBatch:
        """The tuples in `slots`, copied."""
        return self.store.gather(slots, self.codes(slots))

    def mark_matched(self, slots: NDArray[np.int32]) -> None:
        """These tuples have found a master row."""
        kernels.mark_matched(self.nodes, slots)

    def finish(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Count unlinked tuples as finished; returns those that found no master row.

        Their columns stay readable until `release`.
        """
        recorder = self._recorder
        lonely = self._lonely if len(slots) <= len(self._lonely) else np.empty_like(slots)
        bins = recorder.processing.bins
        unmatched, waited = kernels.finish(self.nodes, slots, recorder.micros(), bins, lonely)
        recorder.joined += len(slots) - unmatched
        recorder.unmatched += unmatched
        recorder.deletes += len(slots)
        recorder.processing.add_counted(waited)
        return lonely[:unmatched]

    def release(self, slots: NDArray[np.int32]) -> None:
        """The columns of finished tuples are needed no more."""
        self.store.release(slots)
