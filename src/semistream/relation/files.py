"""The files of a master table, wherever they are.

A `Storage` is the folder of one master table, and the only way in `relation` to touch its files:
names are relative to it ("data/…", "versions/…"). `LocalStorage` is a folder of this machine;
`RemoteStorage` is anything else that `pyarrow.fs` opens (S3, GCS, ABFS, HDFS).
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa
import xxhash

__all__ = [
    "FOLDERS",
    "FileEntry",
    "Location",
    "PageFiles",
    "PageSource",
    "Storage",
    "checksum_bytes",
    "is_uri",
    "unused_name",
]

Location: TypeAlias = str | os.PathLike[str]
"""A local path, or a URI."""

FOLDERS = ("versions", "data")
"""The folders inside that of a master table."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class FileEntry(NamedTuple):
    """A file in a folder."""

    name: str
    bytes: int
    modified: float
    """Seconds since 1970."""


class PageSource(Protocol):
    """A page file open for reading at any place."""

    @property
    def descriptor(self) -> int:
        """The operating system's number for the open file; -1 if it has none."""
        ...

    def read_into(self, memory: memoryview, position: int) -> int:
        """Fill memory from `position` on; how many bytes came, 0 at the end of the file."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class Storage(Protocol):
    """The folder of a master table."""

    @property
    def location(self) -> str:
        """What opens the same folder again, also in another process."""
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
        """Make the folders; those that were missing, each before its parent, for `remove`."""
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
        """Fill memory with a file's content; the file's size, which may be another."""
        ...

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a new file and wait until it is safe."""
        ...

    def open_sink(self, name: str) -> pa.NativeFile:
        """A buffered stream that writes a new file; close it, then `settle` it."""
        ...

    def settle(self, names: Iterable[str]) -> None:
        """Wait until files that were written are safe, and will be found by their names."""
        ...

    def publish(self, name: str, data: bytes, build_id: str) -> None:
        """Make a file of `versions` appear with all its content, at once.

        `FileExistsError` if another writer has taken, or is taking, the name. `build_id`
        occurs in the data and in no other writer's.
        """
        ...

    def is_sealed(self, name: str) -> bool:
        """Whether the published file was certainly whole once."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, and folders that are empty; what cannot be removed stays."""
        ...

    def open_pages(self, name: str, direct: bool) -> PageSource:
        """Open a page file for reading; `direct` past the operating system's page cache."""
        ...


@dataclass(frozen=True)
class PageFiles:
    """The page files that the `file` column of a page index numbers."""

    storage: Storage
    names: tuple[str, ...]

    def shown(self, number: int) -> str:
        """The full name of a file, for people to read."""
        return self.storage.shown(self.names[number])


def checksum_bytes(data: bytes | memoryview) -> str:
    """The xxh3 checksum of some bytes, as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(data)


def unused_name(prefix: str) -> str:
    """A name that no other build will choose."""
    return f"{prefix}-{secrets.token_hex(8)}"


def is_uri(location: Location) -> bool:
    """Whether the location is a URI rather than a local path."""
    return isinstance(location, str) and _URI.match(location) is not None
