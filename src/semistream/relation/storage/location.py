"""From a user's path or URI to the storage behind it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeAlias

from semistream.errors import OptionError
from semistream.relation.storage.files import Storage
from semistream.relation.storage.local import LocalStorage
from semistream.relation.storage.remote import RemoteStorage
from semistream.relation.storage.secrecy import without_secrets

__all__ = ["Location", "is_uri", "storage_at"]

Location: TypeAlias = str | os.PathLike[str]
"""A local path, or a URI."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_uri(location: Location) -> bool:
    """Whether the location is a URI rather than a local path."""
    return isinstance(location, str) and _URI.match(location) is not None


def storage_at(location: Location) -> Storage:
    """The storage at a local path, a `file:` URI or any URI that pyarrow opens."""
    if not isinstance(location, str | os.PathLike):
        raise OptionError(f"{location!r} must be the path, or the URI, of a master table.")
    if "\0" in os.fspath(location):
        raise OptionError(f"{without_secrets(location)!r} has a null character: no path has one.")
    if not is_uri(location):
        return LocalStorage(Path(os.fspath(location)))
    remote = RemoteStorage.of_uri(str(location))
    return LocalStorage(Path(remote.root)) if remote.is_local else remote
