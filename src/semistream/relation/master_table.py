"""Master tables: R on disk, in versions.

A master table is a directory. Data files never change; a version is its manifest.

    products.master/
      versions/00000001.json                    the manifest; the highest number is the newest
      data/00000001-<random>.pages.arrow        the rows, a record batch per page
      data/00000001-<random>.index.arrow        a row per page
      data/00000001-<random>.locator.arrow      layout "given" only, with its own index file
      data/00000001-<random>.filter             which keys may be there, if asked for

The files of older versions stay, so whoever has one open, or wants it again, can read it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.errors import CorruptPageError, MasterFormatError
from semistream.keys import KeyCodec
from semistream.relation.build import Recipe, build
from semistream.relation.columns import ArrowData
from semistream.relation.locator import Locator
from semistream.relation.manifest import Manifest, read_manifest
from semistream.relation.membership_filter import MembershipFilter
from semistream.relation.page_file import PageIndex
from semistream.relation.reader import PageReader

__all__ = ["MasterTable"]


class MasterTable:
    """One version of a master table, open for reading. It never changes once open.

    Made by `from_arrow` or `open`. Only its page index is in memory.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._root = root
        self._manifest = manifest
        self._pages = PageIndex.load(*self._indexed("index"))
        self._locator_pages: PageIndex | None = None
        if "locator" in manifest.files:
            self._locator_pages = PageIndex.load(*self._indexed("locator_index"))
        self._filter: MembershipFilter | None = None
        self._stored_schema = manifest.stored_schema
        names = [name for name in self._stored_schema.names if name != manifest.code_column]
        self._schema = pa.schema(
            [self._stored_schema.field(name) for name in names], self._stored_schema.metadata
        )
        self._codec = KeyCodec([self._schema.field(name) for name in manifest.key])
        self._check_files()

    @classmethod
    def from_arrow(
        cls,
        data: ArrowData,
        path: str | os.PathLike[str],
        *,
        key: str | Sequence[str],
        page_bytes: int = 65536,
        layout: str = "key",
        replace: bool = False,
        filter_bits: int = 0,
    ) -> MasterTable:
        """Build a master table from Arrow data and open it.

        The rows are collected and ordered in memory; rows with a null key are left out and
        counted. Nothing is visible at `path` until all of it is written.

        Args:
            data: a table, a record batch, a reader, or an iterable of record batches.
            path: the directory of the master table.
            key: the key column, or several of them.
            page_bytes: the most bytes of a page; a longer row has a page of its own.
            layout: "key" for code order, "given" for the data's own order with the rows of
                one key gathered where its first row stands (say, by access frequency).
            replace: whether to write the next version of a master table that exists.
            filter_bits: bits per key of a membership filter, 4 to 32, so that joins need not
                look for absent keys on the disk (10 lets 1 % of them pass); 0 for none.
        """
        root = Path(os.fspath(path))
        version = build(data, root, Recipe.of(key, page_bytes, layout, filter_bits), replace)
        return cls.open(root, version)

    @classmethod
    def open(cls, path: str | os.PathLike[str], version: int | None = None) -> MasterTable:
        """Open a version of the master table at `path`, by default the newest."""
        root = Path(os.fspath(path))
        return cls(root, read_manifest(root, version))

    @property
    def path(self) -> Path:
        """The directory of the master table."""
        return self._root

    @property
    def version(self) -> int:
        """The number of this version, from 1."""
        return self._manifest.version

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return self._manifest.key

    @property
    def schema(self) -> pa.Schema:
        """The user's columns, with the types they are stored as."""
        return self._schema

    @property
    def stored_schema(self) -> pa.Schema:
        """The columns of a page: `schema`, and `code_column` at the end if there is one."""
        return self._stored_schema

    @property
    def code_column(self) -> str | None:
        """The stored column with the rows' codes; None when the key column is the code."""
        return self._manifest.code_column

    @property
    def layout(self) -> str:
        """The order of the rows: "key" or "given"."""
        return self._manifest.layout

    @property
    def row_count(self) -> int:
        """Rows stored."""
        return self._manifest.row_count

    @property
    def rows_without_key(self) -> int:
        """Rows that were left out because their key is null."""
        return self._manifest.rows_without_key

    @property
    def page_count(self) -> int:
        """Pages stored."""
        return self._manifest.page_count

    @property
    def page_bytes(self) -> int:
        """The most bytes of a page, unless a single row is longer."""
        return self._manifest.page_bytes

    @property
    def widest_row(self) -> int:
        """Bytes that no row passes when it stands alone in Arrow memory."""
        return self._manifest.widest_row

    @property
    def codec(self) -> KeyCodec:
        """Turns keys into the codes that the index knows."""
        return self._codec

    @property
    def pages(self) -> PageIndex:
        """Where the pages are and which codes they hold."""
        return self._pages

    @property
    def index_bytes(self) -> int:
        """Bytes of the indices in memory, a dense layout's included."""
        locator = self._locator_pages.nbytes if self._locator_pages is not None else 0
        return self._pages.nbytes + locator

    @property
    def locator_frame_bytes(self) -> int:
        """Bytes of the frame that look-ups in a dense index need; 0 in key order."""
        pages = self._locator_pages
        return 0 if pages is None else pages.max_length + 2 * 4096

    def reader(self, io: str = "buffered") -> PageReader:
        """A new reader of the pages; its batches have `stored_schema`."""
        return PageReader(self._file("pages"), self._pages, self._stored_schema, io)

    def locator(self, io: str = "buffered") -> Locator | None:
        """A new locator for layout "given"; None for layout "key", where `pages` suffices."""
        if self._locator_pages is None:
            return None
        return Locator(self._file("locator"), self._locator_pages, io)

    @property
    def filter_bytes(self) -> int:
        """Bytes that the membership filter takes in memory; 0 without one."""
        stored = self._manifest.files.get("filter")
        return 0 if stored is None else stored.bytes

    def membership_filter(self) -> MembershipFilter | None:
        """The filter over the keys, read when first asked for; None if none was built.

        `MasterFormatError` if its file is not as it was written.
        """
        stored = self._manifest.files.get("filter")
        if self._filter is None and stored is not None:
            path = self._file("filter")
            self._filter = MembershipFilter.load(path, stored.bytes, stored.checksum)
        return self._filter

    def describe(self) -> str:
        """What this version holds, for people to read."""
        stored = sum(file.bytes for file in self._manifest.files.values())
        average = int(self._pages.length.sum()) / self.row_count if self.row_count else 0.0
        lines = {
            "version": f"{self.version} of {self._manifest.created}",
            "key": f"{', '.join(self.key)} ({'exact' if self._codec.exact else 'hashed'})",
            "layout": self.layout,
            "rows": f"{self.row_count:,} ({self.rows_without_key:,} without a key left out)",
            "row bytes": f"{average:,.1f} on average, at most {self.widest_row:,}",
            "pages": f"{self.page_count:,} of at most {self.page_bytes:,} bytes",
            "bytes": f"{stored:,} on disk",
            "index": f"{self.index_bytes:,} bytes in memory",
            "filter": f"{self.filter_bytes:,} bytes in memory" if self.filter_bytes else "none",
        }
        width = max(map(len, lines))
        body = "\n".join(f"  {name:<{width}}  {text}" for name, text in lines.items())
        return f"master table {self._root}\n{body}"

    def __repr__(self) -> str:
        return (
            f"MasterTable({str(self._root)!r}, version={self.version}, key={self.key}, "
            f"rows={self.row_count}, pages={self.page_count})"
        )

    def _file(self, role: str) -> Path:
        return self._root / "data" / self._manifest.files[role].name

    def _indexed(self, role: str) -> tuple[Path, str]:
        return self._file(role), self._manifest.files[role].checksum

    def _check_files(self) -> None:
        """Find a broken set of files now, not in the middle of a join."""
        counted = (len(self._pages), self._pages.row_count)
        if counted != (self.page_count, self.row_count):
            raise MasterFormatError(
                f"The index of {self._root} has (pages, rows) {counted}, its manifest "
                f"{(self.page_count, self.row_count)}. Restore the files or build it again."
            )
        for role, index in (("pages", self._pages), ("locator", self._locator_pages)):
            if index is not None:
                self._check_size(self._file(role), self._manifest.files[role].bytes, index)

    def _check_size(self, path: Path, expected: int, index: PageIndex) -> None:
        if not path.is_file():
            raise MasterFormatError(f"{path} is missing. Restore it or build the master again.")
        size = path.stat().st_size
        if size == expected:
            return
        whole = int(np.searchsorted(index.offset + index.length, size, side="right"))
        broken = f"page {whole}" if whole < len(index) else "what follows its last page"
        raise CorruptPageError(
            f"{path} has {size} bytes, expected {expected}: it is broken from {broken} on. "
            "Restore the file from a copy, or build the master again."
        )
