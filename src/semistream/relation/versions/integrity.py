"""Checks, when a version is opened, that all its files are there: better than during a join."""

from __future__ import annotations

import numpy as np

from semistream.errors import CorruptPageError, MasterFormatError
from semistream.relation.page_index import PageIndex
from semistream.relation.storage import Storage
from semistream.relation.versions.manifest import Manifest, StoredFile

__all__ = ["check_files"]


def check_files(
    storage: Storage, manifest: Manifest, pages: PageIndex, locator_pages: PageIndex | None
) -> None:
    """Raise `MasterFormatError` or `CorruptPageError` if a file is missing or cut short."""
    counted = (len(pages), pages.row_count)
    if counted != (manifest.page_count, manifest.row_count):
        raise MasterFormatError(
            f"The index of {storage.path} has (pages, rows) {counted}, its manifest "
            f"{(manifest.page_count, manifest.row_count)}. Restore the files or build it again."
        )
    _check_sizes(storage, manifest.page_files, pages)
    if locator_pages is not None:
        _check_sizes(storage, manifest.locator_files, locator_pages)


def _check_sizes(storage: Storage, stored: tuple[StoredFile, ...], index: PageIndex) -> None:
    sizes = storage.sizes([file.path for file in stored])
    for number, (file, size) in enumerate(zip(stored, sizes, strict=True)):
        shown = storage.shown(file.path)
        if size is None:
            raise MasterFormatError(f"{shown} is missing. Restore it or build the master again.")
        if size != file.bytes:
            raise CorruptPageError(
                f"{shown} has {size} bytes, expected {file.bytes}: it is broken from "
                f"{_first_broken(index, number, size)} on. "
                "Restore the file from a copy, or build the master again."
            )


def _first_broken(index: PageIndex, number: int, size: int) -> str:
    cut = np.flatnonzero((index.file == number) & (index.offset + index.length > size))
    return f"page {cut[0]}" if len(cut) else "what follows its last page"
