"""One version of a master table, open for reading: all that joins and updates need of it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import numpy as np
import pyarrow as pa

from semistream.arrow_arrays import to_numpy
from semistream.errors import CorruptPageError, OptionError
from semistream.keys import Codes, KeyCodec
from semistream.relation.description import describe
from semistream.relation.locator import Locator
from semistream.relation.membership_filter import MembershipFilter
from semistream.relation.page_index import PageIndex
from semistream.relation.page_rules import PageRules
from semistream.relation.reader import Frame, PageReader
from semistream.relation.storage import (
    PACKED,
    CacheSetting,
    LocalStorage,
    Location,
    Packing,
    PageFiles,
    Storage,
    room_to_read,
)
from semistream.relation.versions.integrity import check_files
from semistream.relation.versions.manifest import Manifest, StoredFile

__all__ = ["MasterVersion"]

_SAMPLED: Final = 16
_SAMPLED_FAR: Final = 4
"""Pages that are read to know how many rows a key has: fewer where a read takes long."""


class MasterVersion:
    """One version of a master table. It never changes once open.

    Only its page index is in memory.
    """

    def __init__(
        self, storage: Storage, manifest: Manifest, pages: PageIndex | None = None
    ) -> None:
        """`pages` is the page index of a relation without files; otherwise it is read from one."""
        self._storage = storage
        self._manifest = manifest
        self._shard: int | None = None
        self._cache: CacheSetting | None = None
        self._locator_pages: PageIndex | None = None
        self._filter: MembershipFilter | None = None
        self._stored_schema = manifest.stored_schema
        names = [name for name in self._stored_schema.names if name != manifest.code_column]
        self._schema = pa.schema(
            [self._stored_schema.field(name) for name in names], self._stored_schema.metadata
        )
        self._codec = KeyCodec([self._schema.field(name) for name in manifest.key])
        self._pages = self._index("index") if pages is None else pages
        if "locator_index" in manifest.files:
            self._locator_pages = self._index("locator_index")
        if pages is None:
            check_files(storage, manifest, self._pages, self._locator_pages)

    def shard(self, number: int) -> Self:
        """One shard as a master table of its own, with no other shard's pages."""
        if self._shard is not None or not 0 <= number < self.shard_count:
            raise OptionError(
                f"There is no shard {number!r} of {self!r}. It has {self.shard_count}, numbered "
                "from 0; open the whole master table to have them all."
            )
        part = self._twin()
        part._shard = number
        starts, locator_starts = self._manifest.shard_starts, self._manifest.locator_starts
        part._pages = self._pages.part(starts[number], starts[number + 1])
        if self._locator_pages is not None:
            part._locator_pages = self._locator_pages.part(
                locator_starts[number], locator_starts[number + 1]
            )
        part.__dict__.pop("rows_per_key", None)
        return part

    def cached(self, folder: Location, limit: int | str) -> Self:
        """The same version, read through copies of its pages on a local disk.

        `limit` are the bytes that the copies of all master tables may take in `folder` together,
        such as "20GB"; whoever uses the folder gives the same. A master table on a local disk needs
        no copies, and stays as it is.
        """
        other = self._twin()
        setting = CacheSetting.of(folder, limit)
        other._cache = setting if self.is_far else None
        return other

    @property
    def cache(self) -> tuple[str, int] | None:
        """Where copies of its pages are kept, and how many bytes; None for none."""
        return self._cache

    @property
    def path(self) -> Path | str:
        """The folder of the master table: a path, or a URI without passwords."""
        return self._storage.path

    @property
    def location(self) -> str:
        """The path or URI that opens it again in any process; a URI keeps its passwords."""
        return self._storage.location

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
    def valid(self) -> tuple[str, str] | None:
        """The columns from when to when a row is valid, if they were checked for overlaps."""
        return self._manifest.valid

    @property
    def layout(self) -> str:
        """The order of the rows: "key" or "given"."""
        return self._manifest.layout

    @property
    def shard_count(self) -> int:
        """The number of shards. With more than one, each has its own order of rows."""
        return 1 if self._shard is not None else len(self._manifest.shard_starts) - 1

    @property
    def is_shard(self) -> bool:
        """Whether this is one shard of a master table."""
        return self._shard is not None

    @property
    def row_count(self) -> int:
        """Rows stored."""
        return self._pages.row_count

    @property
    def rows_without_key(self) -> int:
        """Rows that were left out because their key is null."""
        return self._manifest.rows_without_key

    @property
    def page_count(self) -> int:
        """Pages stored."""
        return len(self._pages)

    @property
    def page_bytes(self) -> int:
        """The most bytes of a page, unless a single row is longer."""
        return self._manifest.page_bytes

    @property
    def widest_row(self) -> int:
        """An upper bound of the bytes of a single row alone in Arrow memory."""
        return self._manifest.widest_row

    @property
    def manifest(self) -> Manifest:
        """The version's manifest. It describes the whole master table, even for a shard."""
        return self._manifest

    @property
    def storage(self) -> Storage:
        """Where its files are."""
        return self._storage

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
        """Bytes of the indices in memory, that of the locator and room to decompress included."""
        locator = self._locator_pages.nbytes if self._locator_pages is not None else 0
        room = 0 if self.compression is None else room_to_read(self._pages.max_length)
        if self.compression == PACKED:
            files = len(self._manifest.page_files)
            room += files * Packing.symbol_bytes(self._stored_schema)
        return self._pages.nbytes + locator + room

    @property
    def compression(self) -> str | None:
        """The codec that pages are compressed with; None if they are not."""
        return self._manifest.compression

    @property
    def locator_frame_bytes(self) -> int:
        """Bytes of the frame that look-ups in the locator need; 0 in key order."""
        pages = self._locator_pages
        return 0 if pages is None else pages.max_length + 2 * 4096

    def reader(self, io: str = "buffered") -> PageReader:
        """A new reader of the pages; its batches have `stored_schema`."""
        files = self._page_files(self._manifest.page_files, self.compression)
        return PageReader(files, self._pages, self._stored_schema, io, self._rules())

    @cached_property
    def rows_per_key(self) -> float:
        """How many rows a key has on average, by a few pages: rows of a key stand together."""
        if self.is_live or not self.page_count:
            return 1.0
        most = _SAMPLED_FAR if self.is_far else _SAMPLED
        pairs = changes = 0
        with self.reader() as reader:
            frame = Frame(reader.frame_bytes(1))
            for page in np.unique(np.linspace(0, self.page_count - 1, most).astype(int)).tolist():
                # Whoever joins with a broken page will say so.
                with suppress(CorruptPageError):
                    (batch,) = reader.read(page, 1, frame)
                    codes = self._row_codes(batch)
                    pairs += len(codes) - 1
                    changes += int(np.count_nonzero(np.diff(codes)))
        return max(1.0, pairs / max(changes, 1))

    @property
    def is_live(self) -> bool:
        """Whether others may change its rows: it is a table in a database, not a version."""
        return False

    @property
    def moment(self) -> int:
        """Counts up when rows may have changed; those of a version never do."""
        return 0

    def held(self) -> AbstractContextManager[None]:
        """See the same rows until the block ends, also if they may change."""
        return nullcontext()

    def shared(self) -> AbstractContextManager[str | None]:
        """The name of a moment that other processes can see until the block ends.

        None if rows never change, or if each process sees a moment of its own.
        """
        return nullcontext()

    @property
    def is_far(self) -> bool:
        """Whether a read may take tens of milliseconds, but many can be under way at a time."""
        return not isinstance(self._storage, LocalStorage)

    @property
    def can_be_mapped(self) -> bool:
        """Whether its pages, or copies of them, are files of this machine."""
        return self._page_files((), self.compression).can_be_mapped

    def locator(self, io: str = "buffered") -> Locator | None:
        """A new locator for layout "given"; None for layout "key", where `pages` suffices."""
        if self._locator_pages is None:
            return None
        files = self._page_files(self._manifest.locator_files)
        base = 0 if self._shard is None else self._manifest.shard_starts[self._shard]
        return Locator(files, self._locator_pages, io, len(self._pages), base)

    @property
    def filter_bytes(self) -> int:
        """Bytes that the membership filter takes in memory; 0 without one."""
        stored = self._manifest.files.get("filter")
        return 0 if stored is None else stored.bytes

    def membership_filter(self) -> MembershipFilter | None:
        """The filter over the keys, read on first use; None if none was built.

        A shard has the filter of the whole table. `MasterFormatError` if the file is broken.
        """
        stored = self._manifest.files.get("filter")
        if self._filter is None and stored is not None:
            self._filter = MembershipFilter.load(
                self._storage, stored.path, stored.bytes, stored.checksum
            )
        return self._filter

    def describe(self) -> str:
        """What this version holds, for people to read."""
        return describe(self._manifest, self._pages, self.index_bytes, str(self.path))

    def __repr__(self) -> str:
        shard = "" if self._shard is None else f", shard={self._shard}"
        return (
            f"MasterTable({str(self.path)!r}, version={self.version}{shard}, key={self.key}, "
            f"rows={self.row_count}, pages={self.page_count})"
        )

    def _twin(self) -> Self:
        """Another object with the same content. Not `copy.copy`, which would open it again."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def _index(self, role: str) -> PageIndex:
        stored = self._manifest.files[role]
        return PageIndex.load(self._storage, stored.path, stored.checksum)

    def _rules(self) -> PageRules:
        """What its pages must be like."""
        return PageRules(
            self._stored_schema, self._row_codes, self.layout == "key", key=(self.key,)
        )

    def _row_codes(self, batch: pa.RecordBatch) -> Codes:
        if self.code_column is not None:
            stored: Codes = to_numpy(batch.column(self.code_column))
            return stored
        codes, valid = self._codec.codes([batch.column(name) for name in self.key])
        if valid is not None and not valid.all():
            raise ValueError("a row has no key")
        return codes

    def _page_files(
        self, stored: tuple[StoredFile, ...], compression: str | None = None
    ) -> PageFiles:
        names = tuple(file.path for file in stored)
        return PageFiles(self._storage, names, self._cache, compression)
