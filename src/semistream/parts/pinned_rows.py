"""Pinned rows: master rows that stay in memory, found by the stream's key (H_R).

Optimised X-HYBRIDJOIN keeps the most popular partitions here and probes them with arriving
tuples (Naeem et al. 2012, §4.1). The hash table is the stream table's, with master rows in the
slots. Only keys whose rows are all here are in it: a key is found whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream import kernels
from semistream.budget import Grant
from semistream.kernels import NODE, NONE, Chains
from semistream.metrics import Recorder
from semistream.parts.disk_buffer import Partition
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.stream_buffer import Arrivals
from semistream.parts.stream_table import bucket_bits

BYTES_PER_ROW = NODE.itemsize + 4
"""A node and a bucket."""
_NO_FENCES: NDArray[np.int64] = np.empty(0, np.int64)


class PinnedRows:
    """A hash table over the whole keys of some partitions."""

    def __init__(
        self,
        partitions: list[Partition],
        shape: JoinShape,
        output: Output,
        grant: Grant,
        recorder: Recorder,
    ) -> None:
        """Index the partitions' whole rows; they must stay where they are."""
        rows = sum(len(partition.codes) for partition in partitions)
        grant.take(rows * BYTES_PER_ROW + 64)
        self._shape = shape
        self._output = output
        self._recorder = recorder
        self._partitions = partitions
        self._starts = np.cumsum([0] + [len(partition.codes) for partition in partitions])
        self._bits = bucket_bits(rows, 1)
        heads = np.full(1 << self._bits, NONE, np.int32)
        self._chains = Chains(heads, np.zeros(rows, NODE))
        for partition, start in zip(partitions, self._starts, strict=False):
            whole = slice(partition.start, partition.stop)
            slots = np.arange(start + whole.start, start + whole.stop, dtype=np.int32)
            codes = partition.codes[whole]
            kernels.insert(self._chains, _NO_FENCES, self._bits, codes, slots, 0)

    def probe(self, arrivals: Arrivals, missed: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """Output the arrivals that are found; clears their place in `missed`."""
        output = self._output
        cursor = np.array([0, NONE], np.int64)
        count = len(arrivals.codes)
        self._recorder.probes += count
        while cursor[0] < count:
            found = kernels.probe(
                self._chains,
                0,
                self._bits,
                arrivals.codes,
                count,
                cursor,
                output.slots,
                output.rows,
                False,
            )
            yield from self._join(arrivals, output.rows[:found], output.slots[:found], missed)

    def _join(
        self,
        arrivals: Arrivals,
        tuples: NDArray[np.int32],
        slots: NDArray[np.int32],
        missed: NDArray[np.bool_],
    ) -> Iterator[pa.RecordBatch]:
        places = np.searchsorted(self._starts, slots, side="right") - 1
        for place in np.unique(places).tolist():
            here = places == place
            partition = self._partitions[place]
            rows = (slots[here] - self._starts[place]).astype(np.int32)
            mine = tuples[here]
            for begin, end in self._output.cuts(partition, rows):
                stream = arrivals.batch.take(pa.array(mine[begin:end]))
                master = partition.batch.take(pa.array(rows[begin:end]))
                agree = self._shape.true_matches(stream, master)
                hit = mine[begin:end]
                if agree is not None:
                    keep = pa.array(agree)
                    stream, master, hit = stream.filter(keep), master.filter(keep), hit[agree]
                missed[hit] = False
                yield from self._output.matched(stream, master)
