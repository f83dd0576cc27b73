"""The page files of a version, each opened where it is best read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semistream.relation.storage.cached_file import CachedFile, FilePages
from semistream.relation.storage.compressed_file import CompressedFile
from semistream.relation.storage.files import PageSource, Storage, checksum_bytes
from semistream.relation.storage.local import LocalStorage
from semistream.relation.storage.page_cache import CacheSetting

__all__ = ["PageFiles"]


@dataclass(frozen=True)
class PageFiles:
    """The page files that the `file` column of a page index numbers."""

    storage: Storage
    names: tuple[str, ...]
    cache: CacheSetting | None = None
    """Where copies of pages are kept; None to read the files only."""
    compression: str | None = None
    """The codec of their pages, if they are compressed."""

    def shown(self, number: int) -> str:
        """The full name of a file, for people to read."""
        return self.storage.shown(self.names[number])

    def opened(self, number: int, direct: bool, pages: Callable[[int], FilePages]) -> PageSource:
        """A file open for reading; `direct` bypasses the operating system's page cache.

        `pages` tells which pages it has.
        """
        name = self.names[number]
        if self.cache is None or direct:
            return self._file(number, direct, pages)
        # Masters in different places may have files of the same name, if one is a copy.
        known_as = checksum_bytes(self.storage.shown(name).encode())
        return CachedFile(
            known_as,
            pages(number),
            self.cache.opened(),
            lambda: self._file(number, False, pages),
        )

    def _file(self, number: int, direct: bool, pages: Callable[[int], FilePages]) -> PageSource:
        source = self.storage.open_pages(self.names[number], direct)
        if self.compression is None:
            return source
        return CompressedFile(source, self.compression, pages(number).blocks, direct)

    @property
    def can_be_mapped(self) -> bool:
        """Whether pages can be searched in place: in the files, or in copies."""
        as_it_is = isinstance(self.storage, LocalStorage) and self.compression is None
        return self.cache is not None or as_it_is
