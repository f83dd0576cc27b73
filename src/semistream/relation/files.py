"""Access to the files of a master table, and the only place that does it.

Local paths for now. Everything else in `relation` goes through these few functions, so that
another filesystem can stand behind them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import xxhash

__all__ = [
    "checksum_bytes",
    "checksum_file",
    "make_directories",
    "open_sink",
    "publish",
    "read_bytes",
    "read_into",
    "remove",
    "sync",
    "unused_name",
    "write_bytes",
]

_CHUNK = 1 << 20
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def checksum_bytes(data: bytes | memoryview) -> str:
    """The xxh3 checksum of some bytes, as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(data)


def checksum_file(path: Path) -> str:
    """The xxh3 checksum of a file's content."""
    digest = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def read_bytes(path: Path) -> bytes:
    """The whole of a small file."""
    return path.read_bytes()


def read_into(path: Path, memory: memoryview) -> int:
    """Fill memory with a file's content; the file's size, which may be another."""
    with open(path, "rb") as file:
        file.readinto(memory)
        return os.fstat(file.fileno()).st_size


def unused_name(prefix: str) -> str:
    """A name that no other build will choose."""
    return f"{prefix}-{secrets.token_hex(8)}"


def make_directories(path: Path) -> list[Path]:
    """Make a directory and its missing parents; the ones made, innermost first."""
    made: list[Path] = []
    while not path.exists():
        made.append(path)
        path = path.parent
    for directory in reversed(made):
        directory.mkdir(exist_ok=True)
    return made


def open_sink(path: Path) -> pa.NativeFile:
    """A buffered Arrow stream that writes a new file; close it, then `sync` the file."""
    return pa.BufferedOutputStream(pa.OSFile(str(path), "wb"), _CHUNK)


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def publish(path: Path, data: bytes) -> None:
    """Make a file appear at once with all its content; `FileExistsError` if it is there."""
    temporary = path.parent / unused_name(".tmp")
    try:
        write_bytes(temporary, data)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Without hard links two builds could both pass this check; rename is still atomic.
            if path.exists():
                raise FileExistsError(errno.EEXIST, "file exists", str(path)) from error
            os.rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def remove(paths: Iterable[Path]) -> None:
    """Remove files, and directories that are empty; what cannot be removed stays."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
