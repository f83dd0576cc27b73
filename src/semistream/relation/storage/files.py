"""What `relation` asks of the place where a master table's files are.

A `Storage` is the folder of one master table. All access to its files goes through it, by names
relative to the folder ("data/…", "versions/…"). `LocalStorage` is a folder of this machine;
`RemoteStorage` is anything else that `pyarrow.fs` opens (S3, GCS, ABFS, HDFS).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import xxhash

__all__ = [
    "FOLDERS",
    "FileEntry",
    "PageSource",
    "Storage",
    "checksum_bytes",
    "unused_name",
]

FOLDERS = ("versions", "data")
"""The folders inside that of a master table."""


class FileEntry(NamedTuple):
    """A file in a folder."""

    name: str
    bytes: int
    modified: float
    """Seconds since 1970."""


class PageSource(Protocol):
    """A page file open for reading at any position."""

    @property
    def descriptor(self) -> int:
        """The operating system's number for the open file; -1 if it has none."""
        ...

    def read_into(self, memory: memoryview, position: int) -> int:
        """Read into memory from `position` on; returns the bytes read, 0 at the end of the file."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class Storage(Protocol):
    """The folder of a master table."""

    @property
    def location(self) -> str:
        """The path or URI that opens the same folder again, also in another process."""
        ...

    @property
    def path(self) -> Path | str:
        """The folder as a user knows it: a path, or a URI without passwords."""
        ...

    def shown(self, name: str) -> str:
        """A file's full name, for people to read."""
        ...

    def is_file(self) -> bool:
        """Whether a file stands where the folder should be."""
        ...

    def prepare(self) -> list[str]:
        """Make the folders. Returns those that were missing, children first, for `remove`."""
        ...

    def entries(self, folder: str) -> list[FileEntry]:
        """The files in a folder; none if there is no such folder."""
        ...

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """The bytes of each file; None for one that is missing."""
        ...

    def read(self, name: str) -> bytes:
        """The whole of a small file."""
        ...

    def read_into(self, name: str, memory: memoryview) -> int:
        """Fill memory with a file's content. Returns the file's size, which may differ."""
        ...

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a new file and wait until it is durable."""
        ...

    def open_sink(self, name: str) -> pa.NativeFile:
        """A buffered stream that writes a new file; close it, then `settle` it."""
        ...

    def settle(self, names: Iterable[str]) -> None:
        """Wait until the files, and their names in the folder, are durable."""
        ...

    def publish(self, name: str, data: bytes, build_id: str) -> None:
        """Make a file of `versions` appear with its whole content at once.

        `FileExistsError` if another writer has taken the name, or is about to. The data contains
        `build_id`, and no other writer's data does.
        """
        ...

    def is_sealed(self, name: str) -> bool:
        """Whether the published file is known to have been complete."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files and empty folders; whatever cannot be removed stays."""
        ...

    def open_pages(self, name: str, direct: bool) -> PageSource:
        """Open a page file for reading; `direct` bypasses the operating system's page cache."""
        ...


def checksum_bytes(data: bytes | memoryview) -> str:
    """The xxh3 checksum of some bytes, as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(data)


def unused_name(prefix: str) -> str:
    """A name that no other build will choose."""
    return f"{prefix}-{secrets.token_hex(8)}"
