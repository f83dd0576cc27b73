"""The index of pages: where each lies and which codes it holds, one array item per page.

Pages may lie in several files. A *stretch* is a run of pages that lie one behind the other in one
file: it is what a single read brings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import no_rows, to_arrow, to_numpy
from semistream.errors import InternalError, MasterFormatError
from semistream.kernels.settling import settled_by_runs, settled_codes
from semistream.keys import Codes
from semistream.relation.frame import ALIGNMENT, aligned
from semistream.relation.storage import Storage, checksum_bytes

__all__ = ["PageIndex"]

_DTYPES: dict[str, Any] = {
    "first": np.int64,
    "last": np.int64,
    "offset": np.int64,
    "length": np.int64,
    "rows": np.int32,
    "checksum": np.uint64,
    "file": np.int32,
    "place": np.int64,
    "size": np.int64,
}
_OF_COMPRESSED = ("place", "size")
_TYPES = {name: pa.from_numpy_dtype(dtype) for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, eq=False)
class PageIndex:
    """Where each page lies and what it holds: one array item per page."""

    first: Codes
    """Code of the page's first row."""
    last: Codes
    """Code of the page's last row."""
    offset: NDArray[np.int64]
    """Where the page's message begins in its file, as if that were not compressed."""
    length: NDArray[np.int64]
    """Bytes of the page's message."""
    rows: NDArray[np.int32]
    """Rows of the page."""
    checksum: NDArray[np.uint64]
    """xxh3_64 of the page's message."""
    file: NDArray[np.int32]
    """Number of the page's file."""
    place: NDArray[np.int64] | None = None
    """Where the compressed page begins in its file; None for pages that are not compressed."""
    size: NDArray[np.int64] | None = None
    """Bytes of the compressed page."""

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def nbytes(self) -> int:
        """Bytes the index takes in memory."""
        return sum(int(array.nbytes) for array in self._columns().values())

    def stored_bytes(self, first: int, stop: int) -> int:
        """Bytes of the pages from `first` to before `stop` in their files."""
        return int((self.length if self.size is None else self.size)[first:stop].sum())

    @property
    def row_count(self) -> int:
        """Rows in all pages together."""
        return int(self.rows.sum(dtype=np.int64))

    @property
    def max_length(self) -> int:
        """Bytes of the longest page, 0 without pages."""
        return int(self.length.max(initial=0))

    def span(self, code: int) -> tuple[int, int]:
        """First and last page that may hold the code, or a pair lo > hi; O(log pages).

        Only for pages in code order. Their rows of one code are adjacent and may span pages.
        """
        low = int(np.searchsorted(self.last, code, side="left"))
        return low, int(np.searchsorted(self.first, code, side="right")) - 1

    def fences(self, count: int) -> NDArray[np.int64]:
        """The first code of every `count` pages, copied; only for pages in code order."""
        return self.first[::count].copy()

    def crossed(self, edge: int) -> bool:
        """Whether a key has rows on both sides of where page `edge` begins."""
        return 0 < edge < len(self.first) and bool(self.last[edge - 1] == self.first[edge])

    def settled(self, first: int, stop: int) -> tuple[int, int]:
        """The codes low..high that the pages from `first` to before `stop` settle by themselves.

        Every row of such a code is on these pages, or R has none. A code whose rows cross an
        edge is not settled; low is above high when none is. Only for pages in code order.
        """
        return settled_codes(self.first, self.last, first, stop)

    def settled_by_runs(self, firsts: Codes, stops: Codes) -> tuple[Codes, Codes]:
        """The same for several runs of pages: their low and their high."""
        low, high = np.empty_like(firsts), np.empty_like(firsts)
        settled_by_runs(self.first, self.last, firsts, stops, low, high)
        return low, high

    def stretches(self, first: int, stop: int) -> list[tuple[int, int]]:
        """The pages from `first` to before `stop` as stretches, each (first, stop); O(pages)."""
        breaks = (np.flatnonzero(self._breaks(first, stop)) + first + 1).tolist()
        return list(zip([first, *breaks], [*breaks, stop], strict=True))

    def frame_bytes(self, count: int, grain: int = ALIGNMENT) -> int:
        """Bytes of a frame for any `count` consecutive pages, a read per stretch.

        Each read begins and ends at a multiple of `grain`: the alignment for direct reads, 1 for
        others. The need with the alignment is enough for both. O(pages) the first time.
        """
        if count < 1:
            raise InternalError(f"A read of {count} pages was planned. Please report this.")
        if len(self) == 0:
            return ALIGNMENT
        asked = min(count, len(self)), grain
        if asked not in self._frames:
            self._frames[asked] = self._frame_bytes(*asked)
        return self._frames[asked]

    @cached_property
    def _frames(self) -> dict[tuple[int, int], int]:
        """What `frame_bytes` has found: a plan asks for the same ones a hundred times."""
        return {}

    def _frame_bytes(self, count: int, grain: int) -> int:
        pages = len(self)
        begins = self.offset & -grain
        ends = (self.offset + self.length + grain - 1) & -grain
        # The bytes that a break between two pages adds to the distance from first to last page.
        jumps = np.where(self._breaks(0, pages), ends[:-1] - begins[1:], 0)
        detour = np.concatenate([[0], np.cumsum(jumps)])
        last = count - 1
        need = ends[last:] + detour[last:] - begins[: pages - last] - detour[: pages - last]
        return aligned(int(need.max()))

    def part(self, first: int, stop: int) -> PageIndex:
        """A copy of the entries from page `first` to before page `stop`."""
        return PageIndex(**{n: array[first:stop].copy() for n, array in self._columns().items()})

    def renumbered(self, numbers: NDArray[np.int32]) -> PageIndex:
        """The same pages with file number i replaced by `numbers[i]`."""
        return PageIndex(**{**self._columns(), "file": numbers[self.file]})

    def to_bytes(self) -> bytes:
        """The index as an Arrow IPC file, a row per page."""
        batch = pa.record_batch({name: to_arrow(array) for name, array in self._columns().items()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> PageIndex:
        """The index that `to_bytes` has written."""
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
        (batch,) = table.combine_chunks().to_batches() or [no_rows(table.schema)]
        names = [n for n in _DTYPES if n not in _OF_COMPRESSED or n in batch.schema.names]
        columns = {name: batch.column(name) for name in names}
        wrong = [n for n, c in columns.items() if c.null_count or c.type != _TYPES[n]]
        if wrong:
            raise ValueError(f"its columns {', '.join(wrong)} are not those of an index")
        return cls(**{name: to_numpy(column) for name, column in columns.items()})

    @classmethod
    def load(cls, storage: Storage, name: str, checksum: str) -> PageIndex:
        """Read an index back; `MasterFormatError` unless it has the checksum."""
        shown = storage.shown(name)
        try:
            data = storage.read(name)
            found = checksum_bytes(data)
            if found != checksum:
                raise MasterFormatError(
                    f"Index {shown} has checksum {found}, expected {checksum}: it was changed or "
                    "cut short. Restore the file or build the master again."
                )
            return cls.from_bytes(data)
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            raise MasterFormatError(
                f"Index {shown} cannot be read: {error}. Restore it or build the master again."
            ) from error

    @classmethod
    def of(cls, columns: dict[str, list[int]]) -> PageIndex:
        """An index from one list per array; without `file`, all pages are in file 0."""
        columns = {"file": [0] * len(columns["offset"]), **columns}
        return cls(**{name: np.array(some, _DTYPES[name]) for name, some in columns.items()})

    @classmethod
    def joined(cls, parts: Iterable[PageIndex]) -> PageIndex:
        """The entries of several indices, one behind the other."""
        # One without pages does not say whether they would be compressed.
        some = [part._columns() for part in parts if len(part)]
        names = some[0] if some else _DTYPES.keys() - _OF_COMPRESSED
        return cls(
            **{
                name: np.concatenate([np.empty(0, _DTYPES[name]), *(part[name] for part in some)])
                for name in names
            }
        )

    def _columns(self) -> dict[str, NDArray[Any]]:
        """The arrays that there are."""
        found = {name: getattr(self, name) for name in _DTYPES}
        return {name: array for name, array in found.items() if array is not None}

    def _breaks(self, first: int, stop: int) -> NDArray[np.bool_]:
        """For each page but the first, whether a gap or another file lies before it on disk."""
        offset, length, file = (
            array[first:stop] for array in (self.offset, self.length, self.file)
        )
        apart: NDArray[np.bool_] = (offset[1:] != offset[:-1] + length[:-1]) | (
            file[1:] != file[:-1]
        )
        return apart
