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

from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.budget import Grant
from semistream.column_widths import column_width, fixed_dtype, is_large
from semistream.errors import BudgetError
from semistream.kernels import row_gather
from semistream.kernels.copying import SPILL
from semistream.kernels.in_place import PageColumns, Whereabouts, locate
from semistream.kernels.row_gather import Chosen, Target
from semistream.metrics import Recorder
from semistream.parts.frame_finder import searchable
from semistream.parts.join_shape import JoinShape
from semistream.parts.output import Output
from semistream.parts.stream_buffer import Arrivals, no_arrivals
from semistream.relation import MappedPages, MasterTable

Rows = NDArray[np.int64]

_BOOLEAN = pa.bool_()

_BYTES_PER_TUPLE = 48
"""Its place in the order and where its rows begin, twice each; whereabouts; marks."""
_OFFSET = 4
"""Bytes of an offset as it is gathered. A column that has wider ones gets them at the end."""
_BYTES_PER_VARYING = 8
_BYTES_PER_ROW = 4
"""Where it goes. Where it is, and its tuple, are in the memory of the output's pairs."""


def can_be_in_place(master: MasterTable, shape: JoinShape) -> bool:
    """Whether pages of the master can be searched where they lie, if they are in memory."""
    return master.can_be_mapped and searchable(master, shape.code_column, fewest_pages=1)


def in_place_bytes(shape: JoinShape, stored: pa.Schema, tuples: int, rows: int) -> int:
    """What looking up takes, for chunks of so many tuples and so many result rows at a time."""
    names = shape.matched_columns
    types = [stored.field(name).type for name in names]
    varying = [kind for kind in types if fixed_dtype(kind) is None]
    row = _BYTES_PER_ROW + len(varying) * _BYTES_PER_VARYING
    row += _OFFSET * sum(is_large(kind) for kind in varying)
    return tuples * _BYTES_PER_TUPLE + rows * row + (rows // 8 + 1) * len(names)


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
        self._most = rows = min(rows, len(output.pairs.rows))
        self._schema = pa.schema([stored.field(name) for name in shape.matched_columns])
        names = self._schema.names
        self._keys = [names.index(n) for n in shape.master_key if not shape.codec.exact]
        self._nothing = no_arrivals(shape)._replace(widest=-1)
        self._columns = np.array([stored.get_field_index(n) for n in names], np.int64)
        widths = np.array([column_width(field.type) for field in stored], np.int64)
        self._page = PageColumns(widths, stored.get_field_index(shape.code_column))
        self._found = Whereabouts(
            np.zeros(tuples, np.int32),
            np.zeros(tuples, np.int32),
            np.zeros(tuples, np.int32),
            np.zeros(tuples, np.int64),
            np.zeros(3, np.int64),
        )
        chosen = widths[self._columns].tolist()
        varying = [place for place, width in enumerate(chosen) if width < 0]
        self._row_widths = [_OFFSET if width < 0 else max(width, 1) for width in chosen]
        self._varying = np.array(varying, np.int64)
        self._kinds = [
            _Kind(kind, varying.index(place) if place in varying else -1)
            for place, kind in enumerate(self._schema.types)
        ]
        self._heaps = np.zeros(len(varying), np.int64)
        self._target = Target(
            self._columns,
            np.zeros(len(chosen), np.int64),
            np.zeros((len(varying), rows), np.int64),
            np.zeros(len(varying), np.int64),
            np.full((len(chosen), rows // 8 + 1), 255, np.uint8),
            np.zeros(len(chosen), np.bool_),
        )
        self._chosen = Chosen(*output.pairs, np.zeros(rows, np.int32))

    def answer(self, arrivals: Arrivals) -> Generator[Arrivals, None, Arrivals]:
        """Send out the tuples whose pages are all in memory; the others are returned."""
        codes, count = arrivals.codes, len(arrivals.codes)
        if arrivals.widest > self._nothing.widest or arrivals.keyless.num_rows:
            widest = max(self._nothing.widest, arrivals.widest)
            self._nothing = self._nothing._replace(widest=widest)
            yield self._nothing._replace(keyless=arrivals.keyless)
        nothing = self._nothing
        order = np.argsort(codes)
        found = self._located(codes, order)
        rows, answered, joined = found.totals.tolist()
        if rows == joined == count:
            matched = yield from self._join_each(arrivals, order, found, nothing)
        else:
            matched = yield from self._join(arrivals, order, found, nothing)
        if matched is not None:
            joined = int(np.count_nonzero(matched))
            if joined < answered:
                absent = arrivals.batch.filter(to_arrow((found.counts >= 0) & ~matched))
                yield nothing._replace(keyless=absent)
        recorder = self._recorder
        recorder.in_place_probes += answered
        recorder.in_place_rows += rows
        recorder.joined += joined
        recorder.unmatched += answered - joined
        recorder.processing.add(0.0, answered)
        self._mapped.look_again(missed=answered < count)
        if answered == count:
            return nothing
        return arrivals.only(found.counts < 0) if answered else arrivals.keyed()

    def _located(self, codes: NDArray[np.int64], order: Rows) -> Whereabouts:
        self._mapped.check_files()
        counts, pages, rows, begins, totals = self._found
        size = len(codes)
        found = Whereabouts(counts[:size], pages[:size], rows[:size], begins[:size], totals)
        while (broken := locate(codes, order, self._mapped.index, self._page, found)) >= 0:
            self._mapped.drop(broken)
        return found

    def _join_each(
        self, arrivals: Arrivals, order: Rows, found: Whereabouts, nothing: Arrivals
    ) -> Generator[Arrivals, None, NDArray[np.bool_] | None]:
        """Stage the results of tuples that have a row each; returns which have one (None: all)."""
        matched: NDArray[np.bool_] | None = None
        for start, stop in self._pieces(len(order)):
            stream = arrivals.batch.slice(start, stop - start)
            columns = self._gathered(order, start, stop, found)
            agree = self._agree(stream, columns)
            columns = [*stream.columns, *columns]
            if agree is not None:
                matched = np.ones(len(order), np.bool_) if matched is None else matched
                matched[start:stop] = agree
                columns = [column.filter(to_arrow(agree)) for column in columns]
            self._output.put_columns(columns, len(columns[0]))
            yield nothing
        return matched

    def _join(
        self, arrivals: Arrivals, order: Rows, found: Whereabouts, nothing: Arrivals
    ) -> Generator[Arrivals, None, NDArray[np.bool_]]:
        """Stage the result rows of all tuples that were found; returns which tuples have any."""
        counts = np.maximum(found.counts, 0)
        matched = np.zeros(len(counts), np.bool_)
        for start, stop in self._pieces(int(found.totals[0])):
            tuples = _tuples(counts, found.begins, start, stop)
            stream = arrivals.batch.take(to_arrow(tuples))
            columns = self._gathered(order, start, stop, found)
            agree = self._agree(stream, columns)
            columns = [*stream.columns, *columns]
            if agree is not None:
                tuples = tuples[agree]
                columns = [column.filter(to_arrow(agree)) for column in columns]
            matched[tuples] = True
            self._output.put_columns(columns, len(columns[0]))
            yield nothing
        return matched

    def _agree(self, stream: pa.RecordBatch, columns: list[pa.Array]) -> NDArray[np.bool_] | None:
        """Which stream tuples and master rows have the same key and not only code (None: all)."""
        if self._shape.codec.exact:
            return None
        return self._shape.agreeing(stream, [columns[place] for place in self._keys])

    def _pieces(self, total: int) -> Iterator[tuple[int, int]]:
        """The result rows, cut into pieces that have room in a fragment."""
        most = min(self._most, self._output.most_rows)
        return ((start, min(start + most, total)) for start in range(0, total, most))

    def _gathered(self, order: Rows, start: int, stop: int, found: Whereabouts) -> list[pa.Array]:
        """The master's columns of the result rows from `start` to before `stop`."""
        count, target = stop - start, self._target
        # Arrow's allocator keeps memory that was given back; NumPy's asks the system each time.
        buffers = [pa.allocate_buffer(count * width + SPILL) for width in self._row_widths]
        target.address[:] = [buffer.address for buffer in buffers]
        broken = row_gather.gather(
            order,
            start,
            stop,
            self._mapped.index,
            self._page.widths,
            found,
            self._chosen,
            target,
        )
        if broken >= 0:
            self._mapped.refuse(broken)
        heaps = self._copied(count)
        self._mapped.check_unwritten()
        nulls = target.has_nulls.tolist()
        return [
            kind.column(count, self._bitmap(place, count) if nulls[place] else None, buffer, heaps)
            for place, (kind, buffer) in enumerate(zip(self._kinds, buffers, strict=True))
        ]

    def _copied(self, count: int) -> list[pa.Buffer]:
        """The bytes of the varying columns."""
        sizes = self._target.sizes.tolist()
        if not sizes:
            return []
        if min(sizes) < 0:
            raise BudgetError("A column of a piece of output would pass 2 GB. Give less memory.")
        heaps = [pa.allocate_buffer(size + SPILL) for size in sizes]
        self._heaps[:] = [heap.address for heap in heaps]
        offsets = self._target.address[self._varying]
        row_gather.copy_varying(self._target.sources, offsets, count, self._heaps)
        return heaps

    def _bitmap(self, place: int, count: int) -> pa.Buffer:
        """Which values of a column are valid; the bits are set again."""
        valid = self._target.valid[place]
        bitmap = pa.py_buffer(valid[: count // 8 + 1].copy())
        valid[:] = 255
        self._target.has_nulls[place] = False
        return bitmap


class _Kind(NamedTuple):
    """The type of a column, and its number among those of varying size, or -1."""

    type: pa.DataType
    varying: int

    def column(
        self, count: int, bitmap: pa.Buffer | None, values: pa.Buffer, heaps: list[pa.Buffer]
    ) -> pa.Array:
        """A column of the result from what was gathered."""
        buffers = [bitmap, values]
        if self.varying >= 0:
            if is_large(self.type):
                ends = np.frombuffer(values, np.int32, count + 1)
                buffers[1] = pa.py_buffer(ends.astype(np.int64))
            buffers.append(heaps[self.varying])
        elif self.type == _BOOLEAN:
            bits = np.packbits(np.frombuffer(values, np.uint8, count), bitorder="little")
            buffers[1] = pa.py_buffer(bits)
        return pa.Array.from_buffers(self.type, count, buffers)


def _tuples(counts: NDArray[np.int32], begins: Rows, start: int, stop: int) -> NDArray[np.int32]:
    """The tuples that result rows `start` to `stop` belong to."""
    first = int(np.searchsorted(begins, start, side="right")) - 1
    last = int(np.searchsorted(begins, stop, side="left"))
    some = np.arange(first, last, dtype=np.int32)
    rows = np.repeat(some, counts[first:last])
    skipped = start - int(begins[first])
    return rows[skipped : skipped + stop - start]
