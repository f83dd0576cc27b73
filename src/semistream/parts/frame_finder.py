"""Frame finder: finds the rows of a look-up set by reading its pages into a frame.

    runs of pages ─► frame ─► rows of wanted codes, laid out in the set

A run of pages is read, checked, searched and forgotten, all in compiled code: however many
partitions a set has, one frame per thread is all the memory that pages take.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.column_widths import column_width
from semistream.kernels.packed_rows import Tray
from semistream.kernels.pages import BYTES, STRETCHES, Desk, Layout, find_rows
from semistream.kernels.rows import FIELD
from semistream.parts.look_up_set import LookUpSet
from semistream.parts.reads_under_way import ReadsUnderWay, under_way_bytes
from semistream.parts.row_arena import RowLayout
from semistream.relation import PACKED, Frame, MasterTable

_SPARE = 32
"""Bytes that a column of picked rows may take more than in its page."""


class ReadCounts(NamedTuple):
    """What was read for a look-up set."""

    partitions: int
    pages: int
    bytes: int


def finder_bytes(master: MasterTable, partition_pages: int, threads: int, found: int) -> int:
    """What a finder takes: for each thread a frame, the columns of the pages in it, reads ahead."""
    page = len(master.stored_schema) * FIELD.itemsize + 8
    frame = master.pages.frame_bytes(partition_pages)
    if master.compression == PACKED:
        frame += _tray_bytes(master, partition_pages)
    under_way = under_way_bytes(master, partition_pages, found)
    return threads * (frame + partition_pages * page + under_way)


def _tray_bytes(master: MasterTable, partition_pages: int) -> int:
    """Room for all rows of a partition's pages, in columns that end at multiples of eight."""
    columns = _SPARE * partition_pages * (len(master.stored_schema) + 1)
    return master.pages.frame_bytes(partition_pages) + columns + int(master.pages.rows.max())


class FrameFinder:
    """Reads partitions and keeps the rows of wanted codes; for several threads at once."""

    def __init__(
        self,
        master: MasterTable,
        code_column: str,
        rows: RowLayout,
        partition_pages: int,
        threads: int,
        found_bytes: int,
        io: str,
    ) -> None:
        """Rows are laid out as `rows` says; whoever makes it has been granted its bytes.

        `found_bytes` are those of a set of look-ups.
        """
        self._master = master
        self._reader = master.reader(io)
        self._trays: list[Frame] = []
        stored = master.stored_schema
        columns = np.array([stored.get_field_index(n) for n in rows.schema.names], np.int64)
        self._layout = Layout(
            np.array([column_width(field.type) for field in stored], np.int64),
            stored.get_field_index(code_column),
            columns,
            rows.head,
            rows.flags,
        )
        self._desks: SimpleQueue[tuple[Frame, Desk, ReadsUnderWay | None]] = SimpleQueue()
        self._under_way = [
            ReadsUnderWay(self._reader, master, partition_pages, found_bytes)
            for _ in range(threads if master.is_far and self._reader.keeps_files_open else 0)
        ]
        for thread in range(threads):
            frame = Frame(self._reader.frame_bytes(partition_pages))
            fields = np.zeros((partition_pages, len(stored)), FIELD)
            fields["place"][:, columns] = rows.places
            page_rows = np.zeros(partition_pages, np.int64)
            progress = np.zeros(4, np.int64)
            desk = Desk(frame.address, fields, page_rows, progress, self._tray(partition_pages))
            reads = self._under_way[thread] if self._under_way else None
            self._desks.put((frame, desk, reads))
        self._one_reads = Lock()

    def _tray(self, partition_pages: int) -> Tray:
        """Room for rows of packed pages; none if pages are not packed, or are unpacked as whole."""
        if not self._reader.stored.is_packed:
            return Tray(0, 0, np.zeros(0, np.uint8), np.zeros(0, np.bool_))
        marks = np.zeros(int(self._master.pages.rows.max()), np.uint8)
        memory = Frame(_tray_bytes(self._master, partition_pages))
        self._trays.append(memory)
        asked = np.zeros(len(self._layout.widths), np.bool_)
        asked[[*self._layout.columns, self._layout.code]] = True
        return Tray(memory.address, memory.nbytes, marks, asked)

    def find(self, look_ups: LookUpSet) -> ReadCounts:
        """Lay out all rows of the wanted codes in the set. It may run in another thread."""
        stretches = self._reader.stretches(*look_ups.runs)
        frame, desk, reads = self._desks.get()
        try:
            desk.progress[:] = 0
            self._find(stretches, frame, desk, reads, look_ups)
            read = stretches[: desk.progress[STRETCHES]]
            size = int(desk.progress[BYTES])
        finally:
            if reads is not None:
                reads.stop()
            self._desks.put((frame, desk, reads))
        runs = np.count_nonzero(np.diff(read["run"], prepend=-1))
        return ReadCounts(int(runs), int((read["stop"] - read["first"]).sum()), size)

    def close(self) -> None:
        """Close the files."""
        for reads in self._under_way:
            reads.close()
        self._reader.close()

    def _find(
        self,
        stretches: NDArray[np.void],
        frame: Frame,
        desk: Desk,
        reads: ReadsUnderWay | None,
        look_ups: LookUpSet,
    ) -> None:
        begin, is_read, reader = 0, False, self._reader
        while begin < len(stretches):
            stopped = find_rows(
                stretches,
                begin,
                is_read,
                reader.stored.grain,
                reader.stored.pages,
                reader.stored.packed,
                self._layout,
                desk,
                look_ups.wanted,
                look_ups.found,
            )
            if stopped < len(stretches):
                if is_read and stopped == begin:
                    raise reader.unsound(stretches[stopped])
                if reader.stored.is_packed:
                    # It raises if the page is broken, and says how.
                    reader.fill(stretches[stopped], frame)
                    raise reader.unsound(stretches[stopped])
                # The reader can read files that compiled code cannot, and its errors say what
                # is wrong with broken ones.
                if reads is not None:
                    desk.progress[BYTES] += reads.fill(stretches, stopped, frame)
                else:
                    with self._one_reads:
                        desk.progress[BYTES] += reader.fill(stretches[stopped], frame)
            begin, is_read = stopped, True


def searchable(master: MasterTable, code_column: str, fewest_pages: int = 2) -> bool:
    """Whether rows can be found on pages as they lie: as below, and in key order.

    Several of them, by default: to look up many tuples at a time in one page saves nothing.
    """
    in_order = master.layout == "key" and len(master.pages) >= fewest_pages
    return in_order and followable(master, code_column)


def followable(master: MasterTable, code_column: str) -> bool:
    """Whether rows can be gone through on pages as they lie: flat columns, plain codes."""
    code = master.stored_schema.field(code_column).type
    return RowLayout.holds(master.stored_schema) and code in (pa.int64(), pa.int32())
