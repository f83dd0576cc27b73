"""Pages used as they lie in memory: many at once, without decoding them one by one.

A page is an Arrow IPC message. Where its buffers begin stands in its metadata, a flatbuffer
whose shape is known; reading that directly takes less than a microsecond. So dozens of
partitions are read in one call, and of each only the rows that somebody waits for are kept.
Only pages whose checksum is right come here. The first time, a page is compared with the index and
with its own length, so that no offset in it leads outside.

    | ffffffff | size | metadata: Message → RecordBatch → nodes, buffers | body: buffers |
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import borrowing_kernel, kernel
from semistream.kernels.copying import load_2, load_4, load_8
from semistream.kernels.packed_pages import Symbols
from semistream.kernels.packed_rows import PackedPages, Tray, pick_rows
from semistream.kernels.page_check import sound_codes, sound_page, values_at
from semistream.kernels.reading import PageList, announce_pages, intact, read_stretch
from semistream.kernels.rows import granules_of, put_row

GRANULES, ROWS, DONE = range(3)
"""What `FoundRows.used` counts: granules and rows of memory, and codes that are done."""
PAGES, STRETCHES, BYTES, TRAY = range(4)
"""What `Desk.progress` counts: pages opened of the run under way, stretches and bytes read, and
bytes of the tray that the run's rows take."""

_PREFIX = 8
_MESSAGE_HEADER, _BATCH_ROWS, _BATCH_NODES, _BATCH_BUFFERS = 2, 0, 1, 2
_PAIR = 16
"""Bytes of a node (rows, nulls) and of a buffer (begin, length)."""

_SPARE = 2
"""Granules behind the last row that copying may touch."""
_AHEAD = 1 << 22
"""Bytes that the operating system is asked to bring while others are searched."""

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]


class Layout(NamedTuple):
    """How pages' columns are found, and rows laid out: see `rows.FIELD` and `row_arena`.

    `widths` are of all columns of a page, of which `code` has the codes and `columns` are laid
    out.
    """

    widths: Codes
    code: int
    columns: Codes
    head: int
    flags: int


class Wanted(NamedTuple):
    """Codes to look up: those that belong to the i-th run of pages end before `ends[i]`."""

    codes: Codes
    ends: Codes


class FoundRows(NamedTuple):
    """Rows laid out one after the other in `memory`, from `starts` on, code by code.

    `counts` says how many rows each code has. Codes from `used[DONE]` on had no room.
    """

    counts: Numbers
    starts: Codes
    memory: Codes
    nulls: NDArray[np.bool_]
    used: Codes


class Desk(NamedTuple):
    """Where a run of pages is read to, and what is known of its pages.

    `frame` is an address; `fields` and `page_rows` hold the columns and the row count of each page.
    """

    frame: int
    fields: Any
    page_rows: Codes
    progress: Codes
    tray: Tray
    """For rows of packed pages."""


@kernel
def _field(table: int, number: int) -> int:
    """Where a field of a flatbuffer table stands; 0 if it is not there."""
    vtable = table - load_4(table)
    if 4 + 2 * number >= load_2(vtable):
        return 0
    offset = load_2(vtable + 4 + 2 * number)
    return table + offset if offset else 0


@kernel
def _target(reference: int) -> int:
    """What a flatbuffer reference points at."""
    return reference + load_4(reference)


@kernel
def open_page(message: int, widths: NDArray[np.int64], fields: Any) -> int:
    """Find the columns of the page at address `message`, which is sound; its rows, or -1.

    `fields` (see `rows.FIELD`) has an entry per column, and `widths` is theirs.
    """
    root = message + _PREFIX
    header = _field(_target(root), _MESSAGE_HEADER)
    if load_4(message) != -1 or header == 0:
        return -1
    batch = _target(header)
    rows, nodes, buffers = (
        _field(batch, _BATCH_ROWS),
        _field(batch, _BATCH_NODES),
        _field(batch, _BATCH_BUFFERS),
    )
    if rows == 0 or nodes == 0 or buffers == 0:
        return -1
    node, buffer = _target(nodes) + 4, _target(buffers) + 4
    body = root + load_4(message + 4)
    for j in range(len(widths)):
        fields[j].first = 0
        fields[j].width = widths[j]
        fields[j].valid = body + load_8(buffer) if load_8(node + 8) else 0
        fields[j].offsets = body + load_8(buffer + _PAIR) if widths[j] < 0 else 0
        buffer += 2 * _PAIR if widths[j] < 0 else _PAIR
        fields[j].values = body + load_8(buffer)
        buffer += _PAIR
        node += _PAIR
    return load_8(rows)


@kernel
def is_sound(
    at: int, page: int, pages: PageList, widths: NDArray[np.int64], column: int, in_order: bool
) -> bool:
    """Whether a page is what the index says; once per page, then it is known.

    `column` is the number of the code column; codes may fall unless they are `in_order`.
    """
    if pages.sound[page]:
        return True
    rows, found = int(pages.rows[page]), np.zeros(3, np.int64)
    if not sound_page(at, pages.length[page], rows, widths, found):
        return False
    values = at + found[2] + load_8(at + found[1] + values_at(widths, column))
    wide = widths[column] == 8
    if not sound_codes(values, wide, rows, pages.first[page], pages.last[page], in_order):
        return False
    pages.sound[page] = 1
    return True


@kernel
def code_of(field: Any, row: int) -> int:
    """The code of a row, from its page's code column of eight or four bytes."""
    if field.width == 8:
        return load_8(field.values + 8 * row)
    return load_4(field.values + 4 * row)


@kernel
def first_row(field: Any, start: int, stop: int, code: int) -> int:
    """The first of a page's ascending rows start..stop whose code is not below `code`."""
    low, high = start, stop
    while low < high:
        middle = (low + high) >> 1
        if code_of(field, middle) < code:
            low = middle + 1
        else:
            high = middle
    return low


@borrowing_kernel
def _find_code(layout: Layout, desk: Desk, code: int, number: int, found: FoundRows) -> bool:
    """Lay out all rows that a code has on the pages of the run; False when there is no room."""
    fields, page_rows, pages, page = desk.fields, desk.page_rows, desk.progress[PAGES], 0
    while page + 1 < pages and code_of(fields[page, layout.code], page_rows[page] - 1) < code:
        page += 1
    row = first_row(fields[page, layout.code], 0, page_rows[page], code) if pages else 0
    used, count = found.used[GRANULES], found.used[ROWS]
    words = found.memory.view(np.int32)
    while pages:
        if row == page_rows[page]:
            page, row = page + 1, 0
        if page == pages or code_of(fields[page, layout.code], row) != code:
            break
        length = granules_of(fields[page], layout.columns, row, layout.head)
        if used + length > len(found.memory) - _SPARE or count == len(found.starts):
            return False
        words[2 * used + 1] = length
        put_row(
            found.memory,
            used,
            fields[page],
            layout.columns,
            row,
            layout.head,
            layout.flags,
            found.nulls,
        )
        found.starts[count] = used
        used, count, row = used + length, count + 1, row + 1
    found.counts[number] = count - found.used[ROWS]
    found.used[GRANULES], found.used[ROWS] = used, count
    return True


@borrowing_kernel
def _find_codes(layout: Layout, desk: Desk, run: int, wanted: Wanted, found: FoundRows) -> bool:
    """Lay out the rows of all codes of a run of pages; False when there is no room."""
    first = wanted.ends[run - 1] if run else 0
    for i in range(first, wanted.ends[run]):
        if not _find_code(layout, desk, wanted.codes[i], i, found):
            found.used[DONE] = i
            return False
    return True


@kernel
def _open(at: int, page: int, pages: PageList, layout: Layout, desk: Desk) -> int:
    """Find the columns of a page in the frame; its rows, or -1 if it is not understood."""
    if not is_sound(at, page, pages, layout.widths, layout.code, True):
        return -1
    return open_page(at, layout.widths, desk.fields[desk.progress[PAGES]])


@kernel
def _pick(
    at: int,
    page: int,
    pages: PageList,
    packed: PackedPages,
    layout: Layout,
    desk: Desk,
    wanted: Wanted,
    run: int,
) -> int:
    """The same for a packed page, of which only wanted rows are unpacked."""
    if pages.length[page] == packed.whole[page]:
        # It would not have become smaller, and is kept as it is.
        if not intact(page, page + 1, at - pages.offset[page], pages):
            return -1
        return _open(at, page, pages, layout, desk)
    number, progress = packed.file[page], desk.progress
    picked, used = pick_rows(
        at,
        pages.length[page],
        int(pages.rows[page]),
        (pages.first[page], pages.last[page]),
        layout.widths,
        layout.code,
        wanted.codes,
        wanted.ends[run - 1] if run else 0,
        wanted.ends[run],
        Symbols(packed.words[number], packed.lengths[number]),
        desk.tray,
        progress[TRAY],
        desk.fields[progress[PAGES]],
    )
    progress[TRAY] = used
    return picked


@kernel
def _open_stretch(
    stretch: Any,
    pages: PageList,
    packed: PackedPages,
    layout: Layout,
    desk: Desk,
    wanted: Wanted,
) -> bool:
    """Find the columns of the pages of a stretch that is in the frame; False: not understood."""
    for page in range(stretch.first, stretch.stop):
        at = desk.frame + stretch.place + pages.offset[page] - stretch.position
        if len(packed.whole):
            rows = _pick(at, page, pages, packed, layout, desk, wanted, stretch.run)
        else:
            rows = _open(at, page, pages, layout, desk)
        if rows < 0:
            return False
        if rows > 0:
            desk.page_rows[desk.progress[PAGES]] = rows
            desk.progress[PAGES] += 1
    return True


@kernel
def find_rows(
    stretches: Any,
    begin: int,
    is_read: bool,
    grain: int,
    pages: PageList,
    packed: PackedPages,
    layout: Layout,
    desk: Desk,
    wanted: Wanted,
    found: FoundRows,
) -> int:
    """Read stretches, from `begin` on, and lay out the rows of the wanted codes.

    `is_read`: the first is in the frame already. Returns the number of the stretch that could
    not be read, or how many stretches there are.
    """
    progress, announced, ahead = desk.progress, begin + 1, 0
    for i in range(begin, len(stretches)):
        stretch = stretches[i]
        ahead -= stretch.wanted if i > begin else 0
        # Only what goes through the page cache, and so has no grain, can be asked for.
        is_cached = grain == 1 and stretch.descriptor >= 0
        while is_cached and announced < len(stretches) and ahead < _AHEAD:
            later = stretches[announced]
            announce_pages(later.descriptor, later.first, later.stop, pages)
            ahead += later.wanted
            announced += 1
        if i > begin or not is_read:
            read = read_stretch(stretch, desk.frame, grain, pages, len(packed.whole) == 0)
            if read < 0:
                return i
            progress[BYTES] += read
        if i == 0 or stretches[i - 1].run != stretch.run:
            progress[PAGES] = progress[TRAY] = 0
        if not _open_stretch(stretch, pages, packed, layout, desk, wanted):
            return i
        progress[STRETCHES] = i + 1
        is_last = i + 1 == len(stretches) or stretches[i + 1].run != stretch.run
        if is_last and not _find_codes(layout, desk, stretch.run, wanted, found):
            break
    return len(stretches)
