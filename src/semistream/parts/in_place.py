"""Rows found in place: stream tuples whose pages the operating system holds need not wait.

The papers' joins let tuples wait so that they share a read. A page that is in memory already needs
no read, so there is nothing to share: its rows are looked up where they lie, and the tuple leaves
at once, matched or not. Tuples whose pages are not held go on to the algorithm behind, which
reads for many of them at a time.

    arrivals ─► sorted codes ─► pages in memory ──found, or not in R──► output
                                      │ not held
                                      └────────────────────────────────► algorithm

A chunk's codes are looked up in ascending order, each page once. The results are written in the
order of the stream, so that nothing of its columns is copied as long as each tuple has one row.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.budget import Grant
from semistream.errors import BudgetError
from semistream.kernels import row_gather
from semistream.kernels.copying import SPILL
from semistream.kernels.in_place import PageColumns, Whereabouts, locate
from semistream.kernels.row_gather import Chosen, Target
from semistream.metrics import Recorder
from semistream.parts.columns import fixed_dtype
from semistream.parts.frame_finder import searchable
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.row_arena import column_width, is_large
from semistream.parts.stream_buffer import Arrivals
from semistream.relation import MappedPages, MasterTable
from semistream.relation.storage import LocalStorage

Rows = NDArray[np.int64]

_BYTES_PER_TUPLE = 48
"""Its place in the order and where its rows begin, twice each; whereabouts; marks."""
_BYTES_PER_VARYING = 8 + 4
_BYTES_PER_ROW = 12 + 4
"""Where it is and goes, and its tuple."""


def can_be_in_place(master: MasterTable, shape: JoinShape) -> bool:
    """Whether pages of the master can be searched where they lie, if they are in memory."""
    return searchable(master, shape.code_column) and isinstance(master.storage, LocalStorage)


def in_place_bytes(shape: JoinShape, stored: pa.Schema, tuples: int, rows: int) -> int:
    """What looking up takes, for chunks of so many tuples and so many result rows at a time."""
    names = shape.matched_columns
    varying = sum(fixed_dtype(stored.field(name).type) is None for name in names)
    row = _BYTES_PER_ROW + len(names) + varying * _BYTES_PER_VARYING
    return tuples * _BYTES_PER_TUPLE + rows * row


class InPlace:
    """Answers stream tuples from pages in memory."""

    def __init__(
        self,
        mapped: MappedPages,
        stored: pa.Schema,
        shape: JoinShape,
        output: Output,
        recorder: Recorder,
        tuples: int,
        rows: int,
        grant: Grant,
    ) -> None:
        """For chunks of at most `tuples`, with at most `rows` result rows at a time."""
        grant.take(in_place_bytes(shape, stored, tuples, rows))
        self._mapped = mapped
        self._shape = shape
        self._output = output
        self._recorder = recorder
        self._most = rows
        self._schema = pa.schema([stored.field(name) for name in shape.matched_columns])
        self._columns = np.array([stored.get_field_index(n) for n in self._schema.names], np.int64)
        widths = np.array([column_width(field.type) for field in stored], np.int64)
        self._page = PageColumns(widths, stored.get_field_index(shape.code_column))
        self._found = Whereabouts(*(np.zeros(tuples, np.int32) for _ in range(3)))
        chosen = widths[self._columns].tolist()
        self._row_widths = [0 if width < 0 else max(width, 1) for width in chosen]
        varying = [place for place, width in enumerate(chosen) if width < 0]
        self._varying = {place: number for number, place in enumerate(varying)}
        self._sources = np.zeros((len(varying), rows), np.int64)
        self._ends = np.zeros((len(varying), rows + 1), np.int32)
        self._valid = np.ones((len(chosen), rows), np.bool_)
        self._chosen = Chosen(*(np.zeros(rows, np.int32) for _ in range(3)))

    def answer(self, arrivals: Arrivals) -> Generator[Arrivals, None, Arrivals]:
        """Send out the tuples whose pages are all in memory; the others are returned."""
        codes, count = arrivals.codes, len(arrivals.codes)
        nothing = arrivals.between(0, 0).keyed()
        yield nothing._replace(keyless=arrivals.keyless)
        order = np.argsort(codes)
        found = self._located(codes, order)
        here = found.counts >= 0
        matched = yield from self._join(arrivals, order, found)
        absent = here & ~matched
        unmatched = int(np.count_nonzero(absent))
        answered, joined = int(np.count_nonzero(here)), int(np.count_nonzero(matched))
        self._recorder.in_place_probes += answered
        self._recorder.joined += joined
        self._recorder.unmatched += unmatched
        self._recorder.processing.add(0.0, answered)
        if unmatched:
            yield nothing._replace(keyless=arrivals.batch.filter(to_arrow(absent)))
        self._mapped.look_again(missed=answered < count)
        if not answered:
            return arrivals.keyed()
        return nothing if answered == count else arrivals.only(~here)

    def _located(self, codes: NDArray[np.int64], order: Rows) -> Whereabouts:
        self._mapped.check_files()
        found = Whereabouts(*(part[: len(codes)] for part in self._found))
        broken = locate(codes, order, self._mapped.index, self._page, found)
        if broken >= 0:
            self._mapped.refuse(broken)
        return found

    def _join(
        self, arrivals: Arrivals, order: Rows, found: Whereabouts
    ) -> Generator[Arrivals, None, NDArray[np.bool_]]:
        """Stage the result rows of all tuples that were found; returns which tuples have any."""
        counts = np.maximum(found.counts, 0)
        begins = np.cumsum(counts, dtype=np.int64) - counts
        total = int(counts.sum(dtype=np.int64))
        single = total == len(counts) and bool((counts == 1).all())
        matched = counts > 0
        if not self._shape.codec.exact:
            matched[:] = False
        most = min(self._most, self._output.most_rows)
        for start in range(0, total, most):
            stop = min(start + most, total)
            tuples = _tuples(counts, begins, start, stop)
            chosen = arrivals.batch.slice(start, stop - start)
            if not single:
                chosen = arrivals.batch.take(to_arrow(tuples))
            master = self._gathered(order, begins, start, stop, found)
            self._mapped.check_unwritten()
            self._recorder.in_place_rows += stop - start
            stream, master, tuples = self._shape.true_pairs(chosen, master, tuples)
            matched[tuples] = True
            self._output.put(stream, master)
            yield arrivals.between(0, 0).keyed()
        return matched

    def _gathered(
        self, order: Rows, begins: Rows, start: int, stop: int, found: Whereabouts
    ) -> pa.RecordBatch:
        """The master's part of the result rows from `start` to before `stop`."""
        count = stop - start
        # Arrow's allocator keeps memory that was given back; NumPy's asks the system each time.
        buffers = [pa.allocate_buffer(count * width + SPILL) for width in self._row_widths]
        target = Target(
            self._columns,
            np.array([buffer.address for buffer in buffers], np.int64),
            self._sources,
            self._ends,
            self._valid,
            np.zeros(len(buffers), np.bool_),
        )
        index, chosen = self._mapped.index, self._chosen
        chosen_rows = row_gather.choose(order, begins, start, stop, index.rows, found, chosen)
        broken = row_gather.gather(chosen, chosen_rows, index, self._page.widths, target)
        if broken >= 0:
            self._mapped.refuse(broken)
        columns = [
            self._column(place, count, buffers[place], bool(target.has_nulls[place]))
            for place in range(len(buffers))
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, place: int, count: int, values: pa.Buffer, has_nulls: bool) -> pa.Array:
        """A column of the result from what was gathered."""
        kind, bitmap = self._schema.field(place).type, None
        if has_nulls:
            valid = self._valid[place]
            bitmap = pa.py_buffer(np.packbits(valid[:count], bitorder="little"))
            valid[:] = True
        if place in self._varying:
            number = self._varying[place]
            data = _varying(self._sources[number], self._ends[number], count)
            dtype = np.int64 if is_large(kind) else np.int32
            offsets = pa.py_buffer(self._ends[number, : count + 1].astype(dtype))
            return pa.Array.from_buffers(kind, count, [bitmap, offsets, data])
        if pa.types.is_boolean(kind):
            bits = np.packbits(np.frombuffer(values, np.uint8, count), bitorder="little")
            return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(bits)])
        return pa.Array.from_buffers(kind, count, [bitmap, values])


def _tuples(counts: NDArray[np.int32], begins: Rows, start: int, stop: int) -> NDArray[np.int32]:
    """The tuples that result rows `start` to `stop` belong to."""
    first = int(np.searchsorted(begins, start, side="right")) - 1
    last = int(np.searchsorted(begins, stop, side="left"))
    some = np.arange(first, last, dtype=np.int32)
    rows = np.repeat(some, counts[first:last])
    skipped = start - int(begins[first])
    return rows[skipped : skipped + stop - start]


def _varying(sources: Rows, ends: NDArray[np.int32], count: int) -> pa.Buffer:
    """The bytes of a varying column; `ends` has lengths and becomes offsets."""
    size = row_gather.add_up(ends, count)
    if size < 0:
        raise BudgetError("A column of a piece of output would pass 2 GB. Give less memory.")
    data = pa.allocate_buffer(size + SPILL)
    row_gather.copy_varying(sources, ends, count, data.address)
    return data
