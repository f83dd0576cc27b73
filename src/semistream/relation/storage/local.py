"""A master table in a folder of this machine: atomic commits by hard link, and direct reads.

A version becomes visible only after all its bytes are on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from semistream.crash_points import reached
from semistream.errors import MasterFormatError, OptionError
from semistream.relation.frame import ALIGNMENT, Frame
from semistream.relation.storage.files import FOLDERS, FileEntry, PageSource, unused_name

__all__ = ["LocalSource", "LocalStorage"]

_CHUNK = 1 << 17
_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStorage:
    """The folder at a local path."""

    def __init__(self, root: Path) -> None:
        self.path = root
        self.location = str(root.absolute())

    def shown(self, name: str) -> str:
        """The file's path."""
        return str(self.path / name)

    def is_file(self) -> bool:
        """Whether a file stands where the folder should be."""
        # Not Path.exists, which raises for a name that is too long.
        return os.path.exists(self.path) and not self.path.is_dir()

    def prepare(self) -> list[str]:
        """Make the folders. Returns those that were missing, children first."""
        try:
            made = _make(self.path)
            inside = [path for folder in FOLDERS for path in _make(self.path / folder)]
        except OSError as error:
            if error.errno in _NO_FOLDER:
                raise OptionError(
                    f"{self.path} cannot be a folder: {error.strerror}. Give another path."
                ) from error
            raise
        return [str(path.absolute()) for path in (*inside, *made)]

    def entries(self, folder: str) -> list[FileEntry]:
        """The files in a folder; none if there is no such folder."""
        found: list[FileEntry] = []
        try:
            items = os.scandir(self.path / folder)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                return []
            raise
        with items:
            for item in items:
                # Another process may remove the file between the listing and this call.
                with contextlib.suppress(FileNotFoundError):
                    if item.is_file():
                        told = item.stat()
                        found.append(FileEntry(item.name, told.st_size, told.st_mtime))
        return found

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """The bytes of each file; None for one that is missing."""
        paths = [self._inside(name) for name in names]
        return [path.stat().st_size if os.path.isfile(path) else None for path in paths]

    def read(self, name: str) -> bytes:
        """The whole of a small file."""
        return self._inside(name).read_bytes()

    def read_into(self, name: str, memory: memoryview) -> int:
        """Fill memory with a file's content. Returns the file's size, which may differ."""
        with open(self._inside(name), "rb") as file:
            file.readinto(memory)
            return os.fstat(file.fileno()).st_size

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a new file and wait until it is on the disk."""
        path = self.path / name
        with open(path, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _sync(path.parent)

    def open_sink(self, name: str) -> pa.NativeFile:
        """A buffered stream that writes a new file."""
        return pa.BufferedOutputStream(pa.OSFile(str(self.path / name), "wb"), _CHUNK)

    def settle(self, names: Iterable[str]) -> None:
        """Wait until the files and their entries in the folder are on the disk."""
        paths = [self.path / name for name in names]
        for path in (*paths, *{path.parent for path in paths}):
            _sync(path)

    def publish(self, name: str, data: bytes, build_id: str) -> None:
        """Make a file appear at once with all its content; `FileExistsError` if it is there."""
        path = self.path / name
        temporary = f"{path.parent.name}/{unused_name('.tmp')}"
        hidden = self.path / temporary
        try:
            self.write(temporary, data)
            reached("publish.hidden")
            try:
                os.link(hidden, path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # This filesystem has no hard links. The rename is atomic, but not exclusive: two
                # writers may both pass this check.
                if path.exists():
                    raise FileExistsError(errno.EEXIST, "file exists", str(path)) from error
                os.rename(hidden, path)
            reached("publish.linked")
        finally:
            hidden.unlink(missing_ok=True)
        _sync(path.parent)

    def is_sealed(self, name: str) -> bool:
        """Always True: an incomplete file never appears under its name."""
        return True

    def remove(self, names: Iterable[str]) -> None:
        """Remove files and empty folders; whatever cannot be removed stays."""
        for name in names:
            path = self.path / name
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)

    def open_pages(self, name: str, direct: bool) -> PageSource:
        """Open a page file for reading."""
        return LocalSource(self._inside(name), direct)

    def _inside(self, name: str) -> Path:
        """The path of a file to read; `MasterFormatError` if it is a link to another folder."""
        path = self.path / name
        # Not Path.is_symlink, which raises for a name that is too long.
        if os.path.islink(path) and path.resolve().parent != path.parent.resolve():
            raise MasterFormatError(
                f"{path} is a link that leads out of its folder, to {path.resolve()}. Files of a "
                "master table are read from its own folder only. Put the file itself there."
            )
        return path


class LocalSource:
    """A local file open for reading at any position, even after the file is unlinked."""

    def __init__(self, path: Path, direct: bool) -> None:
        self.descriptor = _open(path, direct)

    def read_into(self, memory: memoryview, position: int) -> int:
        """Read into memory from `position` on; returns the bytes read."""
        return os.preadv(self.descriptor, [memory], position)

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)


def _make(path: Path) -> list[Path]:
    """Make a folder and its missing parents. Returns the folders made, innermost first."""
    made: list[Path] = []
    while not path.exists():
        made.append(path)
        path = path.parent
    for folder in reversed(made):
        folder.mkdir(exist_ok=True)
    return made


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path, direct: bool) -> int:
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    if direct:
        if not hasattr(os, "O_DIRECT"):
            raise _no_direct(path, "this operating system has no O_DIRECT")
        flags |= os.O_DIRECT
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError as error:
        raise MasterFormatError(
            f"Page file {path} is missing. Restore it, or build the master again."
        ) from error
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            raise _no_direct(path, "its filesystem refuses O_DIRECT") from error
        raise
    if direct:
        _try_direct(path, descriptor)
    return descriptor


def _try_direct(path: Path, descriptor: int) -> None:
    """Try one direct read: some filesystems accept the flag and refuse to read with it."""
    try:
        os.preadv(descriptor, [Frame(ALIGNMENT).view], 0)
    except OSError as error:
        os.close(descriptor)
        raise _no_direct(path, f"its filesystem refuses direct reads ({error})") from error


def _no_direct(path: Path, reason: str) -> OptionError:
    return OptionError(f'io="direct" is not possible for {path}: {reason}. Use io="buffered".')
