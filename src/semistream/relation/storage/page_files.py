"""The page files of a version, each opened where it is best read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semistream.relation.storage.cached_file import CachedFile, FilePages
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

    def shown(self, number: int) -> str:
        """The full name of a file, for people to read."""
        return self.storage.shown(self.names[number])

    def opened(self, number: int, direct: bool, pages: Callable[[int], FilePages]) -> PageSource:
        """A file open for reading; `direct` bypasses the operating system's page cache.

        `pages` tells which pages it has.
        """
        name = self.names[number]
        if self.cache is None or direct:
            return self.storage.open_pages(name, direct)
        # Masters in different places may have files of the same name, if one is a copy.
        known_as = checksum_bytes(self.storage.shown(name).encode())
        return CachedFile(
            known_as,
            pages(number),
            self.cache.opened(),
            lambda: self.storage.open_pages(name, False),
        )

    @property
    def can_be_mapped(self) -> bool:
        """Whether pages can be searched in place: in the files, or in copies."""
        return self.cache is not None or isinstance(self.storage, LocalStorage)
