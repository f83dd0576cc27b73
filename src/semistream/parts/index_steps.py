"""Index steps: the look-ups of INLJ for a chunk of arrivals, page after page, in compiled code.

The pages are read in the order of the tuples, and neighbouring tuples share a read, as when each
page goes through Python; that costs more than the read if R is in memory or on a fast disk.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.kernels import index_steps as kernels
from semistream.kernels import step_state as state
from semistream.kernels.steps import FINISHED, OFFERS, UNREAD
from semistream.metrics import Recorder
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.frame_finder import followable
from semistream.parts.front_stage import FrontStage
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.result_columns import ResultColumns
from semistream.parts.step_calls import StepCalls
from semistream.parts.stream_buffer import Arrivals
from semistream.parts.tuple_store import TupleLayout, TupleStore
from semistream.relation import MasterTable


def can_look_up(master: MasterTable, shape: JoinShape, disk: DiskBuffer) -> bool:
    """Whether compiled code can do it: plain keys, flat columns, files it can read."""
    return (
        disk.partitions > 0
        and disk.per_partition == 1
        and followable(master, shape.code_column)
        and shape.codec.exact
        and not len(TupleLayout(shape).varying)
        and disk.readable_in_kernels
    )


class IndexSteps:
    """Looks chunks of tuples up; the disk buffer's partitions are single pages."""

    def __init__(
        self,
        master: MasterTable,
        shape: JoinShape,
        disk: DiskBuffer,
        output: Output,
        recorder: Recorder,
        front: FrontStage | None,
        grant: Grant,
    ) -> None:
        """The front stage, if there is one, is told which keys are frequent."""
        # It keeps no tuple: arrivals are copied into the results from where they are.
        self._store = TupleStore(TupleLayout(shape), 0, 0, grant)
        self._results = ResultColumns(shape, master.stored_schema, self._store, output)
        self._calls = StepCalls(master, shape, disk, output, recorder, front)
        self._disk = disk
        self._output = output
        self._front = front

    def look_up(
        self, arrivals: Arrivals, frequency: NDArray[np.float64]
    ) -> Generator[pa.RecordBatch, None, NDArray[np.bool_]]:
        """Join the arrivals with their rows; returns which of them have none.

        `frequency` is how often their keys come, if anybody wants to know, and 0 if seldom.
        """
        columns, flags = self._store.arriving(arrivals.batch)
        kept = self._store.arrived_columns(columns, arrivals.codes)
        missed = np.ones(len(arrivals.codes), np.bool_)
        asking = kernels.Asking(
            arrivals.codes, *self._disk.spans(arrivals.codes), missed, frequency
        )
        self._calls.state[state.TAKEN] = 0
        self._results.open(kept, flags)
        while (stopped := self._advance(asking)) != FINISHED:
            if stopped == UNREAD:
                self._calls.fill()
            elif stopped == OFFERS:
                self._offer()
            else:
                yield from self._send()
                self._results.open(kept, flags)
        yield from self._send()
        return missed

    def _advance(self, asking: kernels.Asking) -> int:
        calls = self._calls
        parts = calls.relation, self._results.results, calls.found, calls.step()
        stopped = kernels.advance(asking, *parts)
        calls.count()
        return stopped

    def _send(self) -> Iterator[pa.RecordBatch]:
        found = self._results.close()
        if found is not None:
            yield from self._output.written(*found)

    def _offer(self) -> None:
        """Let the front stage see the page just read, and time pass."""
        assert self._front is not None
        self._front.pass_time()
        if len(found := self._calls.candidates(self._front.rule.threshold)):
            page = self._disk.in_memory(int(self._calls.state[state.PAGE]))
            self._front.offer_keys(page, found[np.argsort(page.codes_of(found))])
