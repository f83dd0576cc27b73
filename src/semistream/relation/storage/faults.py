"""What disks and networks refuse, as errors that say where, why, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from semistream.errors import SemistreamError, StorageError
from semistream.relation.storage.secrecy import harmless, scrubbed

__all__ = ["storage_error", "storage_faults"]

_ADVICE: Final = {
    errno.ENOSPC: "Make room there, and try again.",
    errno.EDQUOT: "Make room there, or ask for a larger quota, and try again.",
    errno.EROFS: "Give a path on a disk that can be written to, or mount this one for writing.",
    errno.EACCES: "Give a path that this user may use, or the rights to this one.",
    errno.EPERM: "Give a path that this user may use, or the rights to this one.",
    errno.EMFILE: "Let this process open more files (ulimit -n), and try again.",
}
_OTHER: Final = "Look whether the disk, or the network, is well, and try again."


@contextmanager
def storage_faults(path: object, doing: str, then: str = "") -> Iterator[None]:
    """Raise errors of the operating system and of Arrow's filesystems as `StorageError`.

    `path` may be shown, `doing` is "read" or "written", and `then` says what has become of it.
    """
    try:
        yield
    except SemistreamError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise storage_error(error, f"{path} cannot be {doing}", then) from harmless(error)


def storage_error(error: BaseException, what: str, then: str = "") -> StorageError:
    """The error that says what could not be done, why, and what to do."""
    number = getattr(error, "errno", None)
    made = StorageError(f"{what}: {scrubbed(str(error))}. {then}{_ADVICE.get(number or 0, _OTHER)}")
    made.errno = number
    return made
