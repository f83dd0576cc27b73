"""A master table on any filesystem that `pyarrow.fs` opens: S3, GCS, ABFS, HDFS.

They promise neither an atomic rename nor an exclusive create. So a commit is three puts:

    versions/00000007.<build>.claim    "I am about to commit": of two writers, at least one sees
                                       the claim of the other
    versions/00000007.json             the manifest, in one put, with its own checksum
    versions/00000007.<build>.sealed   "I have read the manifest back, and it is complete"

docs/adr/0008 says what this guarantees and what it does not.
"""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Iterable, Sequence
from threading import Lock

import pyarrow as pa
import pyarrow.fs as pafs

from semistream.errors import MasterFormatError, OptionError
from semistream.relation.storage.files import FOLDERS, FileEntry
from semistream.relation.storage.secrecy import opened, without_secrets

__all__ = ["CLAIM", "SEAL", "RemoteSource", "RemoteStorage"]

CLAIM, SEAL = ".claim", ".sealed"
"""The endings of the names of claims and of seals."""

_WITHOUT_FOLDERS = {"s3", "gcs", "abfs"}
_FEW = 8
_SHORT = 1 << 20


class RemoteStorage:
    """The folder `root` of a pyarrow filesystem; the URI `location` opens it again."""

    def __init__(self, filesystem: pafs.FileSystem, root: str, location: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self.location = location
        self.path = without_secrets(location)

    @classmethod
    def of_uri(cls, uri: str) -> RemoteStorage:
        """The folder that a URI names; `OptionError` if pyarrow cannot open it."""
        filesystem, root = opened(
            uri,
            "Give a local path or a URI that pyarrow.fs.FileSystem.from_uri takes, such as "
            "s3://bucket/products.master.",
        )
        return cls(filesystem, root, uri)

    @property
    def root(self) -> str:
        """The folder inside its filesystem."""
        return self._root

    @property
    def is_local(self) -> bool:
        """Whether the URI names a folder of this machine."""
        return bool(self._filesystem.type_name == "local")

    def shown(self, name: str) -> str:
        """The file's URI, without passwords and options."""
        return f"{self.path.partition('?')[0].rstrip('/')}/{name}"

    def is_file(self) -> bool:
        """Whether a file stands where the folder should be."""
        found = self._filesystem.get_file_info([self._root])[0].type
        return bool(found == pafs.FileType.File)

    def prepare(self) -> list[str]:
        """Make the folders, if the filesystem has folders. Returns those that were missing."""
        if self._filesystem.type_name in _WITHOUT_FOLDERS:
            return []
        paths = [self._place(folder) for folder in FOLDERS]
        found = self._filesystem.get_file_info(paths)
        made = [
            folder
            for folder, info in zip(FOLDERS, found, strict=True)
            if info.type == pafs.FileType.NotFound
        ]
        for folder in made:
            self._filesystem.create_dir(self._place(folder), recursive=True)
        return made

    def entries(self, folder: str) -> list[FileEntry]:
        """The files in a folder; none if there is no such folder."""
        selector = pafs.FileSelector(self._place(folder), allow_not_found=True)
        return [
            FileEntry(
                info.base_name,
                info.size or 0,
                # A file without a time is never old enough for a vacuum.
                math.inf if info.mtime is None else info.mtime.timestamp(),
            )
            for info in self._filesystem.get_file_info(selector)
            if info.type == pafs.FileType.File
        ]

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """The bytes of each file; None for one that is missing."""
        if len(names) > _FEW:
            # One listing of the folder instead of a request per file.
            folders = {name.rpartition("/")[0] for name in names}
            found = {
                f"{folder}/{entry.name}": entry.bytes
                for folder in folders
                for entry in self.entries(folder)
            }
            return [found.get(name) for name in names]
        infos = self._filesystem.get_file_info([self._place(name) for name in names])
        return [info.size if info.type == pafs.FileType.File else None for info in infos]

    def read(self, name: str) -> bytes:
        """The whole of a small file."""
        with self._filesystem.open_input_stream(self._place(name), compression=None) as file:
            data: bytes = file.read()
        return data

    def read_into(self, name: str, memory: memoryview) -> int:
        """Fill memory with a file's content. Returns the file's size, which may differ."""
        with self._filesystem.open_input_file(self._place(name)) as file:
            size = int(file.size())
            filled = 0
            while filled < min(len(memory), size):
                got = file.readinto(memory[filled:])
                if not got:
                    break
                filled += got
        return size

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a file in one put."""
        with self.open_sink(name) as sink:
            sink.write(data)

    def open_sink(self, name: str) -> pa.NativeFile:
        """A stream that writes a file."""
        return self._filesystem.open_output_stream(self._place(name), compression=None)

    def settle(self, names: Iterable[str]) -> None:
        """Nothing to do: a file is durable once it is closed."""

    def publish(self, name: str, data: bytes, build_id: str) -> None:
        """Make a file appear with all its content; `FileExistsError` if another writer has it."""
        stem = name.removesuffix(".json")
        claim, seal = f"{stem}.{build_id}{CLAIM}", f"{stem}.{build_id}{SEAL}"
        try:
            self.write(claim, b"")
            self._refuse_others(stem, claim)
            if self.sizes([name]) != [None]:
                # The listing has lagged behind.
                raise FileExistsError(errno.EEXIST, "taken by another writer", self.shown(name))
            self.write(name, data)
            found = self.read(name)
            if build_id.encode() not in found:
                raise FileExistsError(errno.EEXIST, "another writer's file", self.shown(name))
            if found != data:
                raise OSError(errno.EIO, "the file read back is not as written", self.shown(name))
            # A complete manifest counts even without its seal.
            with contextlib.suppress(OSError):
                self.write(seal, b"")
        finally:
            self.remove([claim])

    def is_sealed(self, name: str) -> bool:
        """Whether the writer of the published file has read it back and found it complete."""
        folder, _, file = name.removesuffix(".json").rpartition("/")
        return any(
            entry.name.startswith(f"{file}.") and entry.name.endswith(SEAL)
            for entry in self.entries(folder)
        )

    def remove(self, names: Iterable[str]) -> None:
        """Remove files and empty folders; whatever cannot be removed stays."""
        for name in names:
            place = self._place(name)
            with contextlib.suppress(OSError):
                if name in FOLDERS:
                    if not self._filesystem.get_file_info(pafs.FileSelector(place)):
                        self._filesystem.delete_dir(place)
                else:
                    self._filesystem.delete_file(place)

    def open_pages(self, name: str, direct: bool) -> RemoteSource:
        """Open a page file for reading; `OptionError` if `direct` is asked for."""
        if direct:
            raise OptionError(
                f'io="direct" is not possible for {self.shown(name)}: it is for local disks, '
                'past the page cache of this machine. Use io="buffered".'
            )
        try:
            return RemoteSource(self._filesystem.open_input_file(self._place(name)))
        except FileNotFoundError as error:
            raise MasterFormatError(
                f"Page file {self.shown(name)} is missing. Restore it, or build the master again."
            ) from error

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _refuse_others(self, stem: str, claim: str) -> None:
        """Raise if another writer is at this version.

        Called after the own claim is written, so two writers cannot both miss each other.
        """
        folder, _, file = stem.rpartition("/")
        own = claim.rpartition("/")[2]
        others = [
            entry.name
            for entry in self.entries(folder)
            if entry.name.startswith(f"{file}.") and entry.name != own
        ]
        if others:
            raise FileExistsError(errno.EEXIST, "taken by another writer", self.shown(stem))


class RemoteSource:
    """A remote file open for reading at any position."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self._one_seeks = Lock()
        self.descriptor = -1

    def read_into(self, memory: memoryview, position: int) -> int:
        """Read into memory from `position` on; returns the bytes read.

        Several threads may read at a time. A long read is not copied, but they take turns.
        """
        if len(memory) <= _SHORT:
            got = self._file.read_at(len(memory), position)
            memory[: len(got)] = got
            return len(got)
        with self._one_seeks:
            self._file.seek(position)
            return int(self._file.readinto(memory))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
