"""Tuple table: what stream tables have in common, however they find their tuples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream import kernels
from semistream.metrics import Recorder
from semistream.parts.tuple_store import TupleStore


class TupleTable:
    """Waiting tuples by slot: their columns, and nodes that have at least a code and a stamp.

    The stamp is the time of entry in even microseconds, made odd when the tuple has matched.
    """

    def __init__(self, store: TupleStore, scratch: int, recorder: Recorder) -> None:
        """Of at most `scratch` tuples at a time is noted which have no match."""
        self.store = store
        self._recorder = recorder
        self._lonely = np.empty(scratch, np.int32)

    @property
    def nodes(self) -> NDArray[Any]:
        """The nodes, by slot."""
        raise NotImplementedError

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
