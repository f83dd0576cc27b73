"""Checks, when a version is opened, that its index fits its manifest and all files are there.

Better then than during a join.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from semistream.errors import CorruptPageError, MasterFormatError
from semistream.relation.page_index import PageIndex
from semistream.relation.storage import Storage
from semistream.relation.versions.manifest import Manifest, StoredFile

__all__ = ["check_files"]

_LONGEST: Final = 1 << 40


def check_files(
    storage: Storage, manifest: Manifest, pages: PageIndex, locator_pages: PageIndex | None
) -> None:
    """Raise `MasterFormatError` or `CorruptPageError` if the parts do not fit together."""
    counted = (len(pages), pages.row_count)
    if counted != (manifest.page_count, manifest.row_count):
        raise MasterFormatError(
            f"The index of {storage.path} has (pages, rows) {counted}, its manifest "
            f"{(manifest.page_count, manifest.row_count)}. Restore the files or build it again."
        )
    starts = manifest.shard_starts if manifest.layout == "key" else None
    _check_index(storage, manifest, "index", pages, manifest.page_files, starts)
    if locator_pages is not None:
        stored, starts = manifest.locator_files, manifest.locator_starts
        _check_index(storage, manifest, "locator_index", locator_pages, stored, starts)


def _check_index(
    storage: Storage,
    manifest: Manifest,
    role: str,
    index: PageIndex,
    stored: tuple[StoredFile, ...],
    starts: tuple[int, ...] | None,
) -> None:
    """Check an index against the files that it numbers; with `starts`, it is in code order."""
    if (fault := _fault(index, [file.bytes for file in stored], starts)) is None and (
        role == "index" and len(index) and (index.place is None) != (manifest.compression is None)
    ):
        fault = "only one of them says that pages are compressed"
    if fault is not None:
        raise MasterFormatError(
            f"Index {storage.shown(manifest.files[role].path)} does not fit its manifest: {fault}. "
            "Restore the files or build the master again."
        )
    _check_sizes(storage, stored, index)


def _fault(index: PageIndex, sizes: list[int], starts: tuple[int, ...] | None) -> str | None:
    """What is wrong with an index; None if nothing is. O(pages)."""
    if starts is not None and starts[-1] != len(index):
        return f"it has {len(index):,} pages, and {starts[-1]:,} are in shards"
    if bool(((index.file < 0) | (index.file >= len(sizes))).any()):
        return f"it has pages of other files than the {len(sizes):,} of the manifest"
    size = np.array(sizes, np.int64)[index.file]
    inside = (index.offset >= 0) & (index.length > 0) & (index.rows > 0)
    place, stored = _stored(index)
    inside &= (place >= 0) & (stored > 0) & (stored <= size) & (place <= size - stored)
    inside &= (stored <= index.length) & (index.length <= _LONGEST)
    if not inside.all():
        return f"page {np.flatnonzero(~inside)[0]} is not inside its file"
    if starts is not None:
        falls = index.first > index.last
        crosses = np.ones(len(index) + 1, np.bool_)
        crosses[list(starts)] = False
        falls[1:] |= crosses[1:-1] & (index.last[:-1] > index.first[1:])
        if falls.any():
            return f"page {np.flatnonzero(falls)[0]} is not in the order of its keys"
    return None


def _stored(index: PageIndex) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each page begins in its file, and its bytes there."""
    if index.place is None or index.size is None:
        return index.offset, index.length
    return index.place, index.size


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
    place, stored = _stored(index)
    cut = np.flatnonzero((index.file == number) & (place + stored > size))
    return f"page {cut[0]}" if len(cut) else "what follows its last page"
