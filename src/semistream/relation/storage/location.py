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
from semistream.relation.storage.secrecy import hides, without_secrets

__all__ = ["Location", "inside", "is_database", "is_uri", "local_path", "storage_at"]

Location: TypeAlias = str | os.PathLike[str]
"""A local path, or a URI."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_DATABASE = re.compile(r"(postgres(ql)?|mysql|mariadb)://")


def is_uri(location: Location) -> bool:
    """Whether the location is a URI rather than a local path."""
    return isinstance(location, str) and _URI.match(location) is not None


def is_database(location: object) -> bool:
    """Whether the location is a URL of a database, where a master can stay."""
    return isinstance(location, str) and _DATABASE.match(location) is not None


def inside(location: Location, name: str) -> str:
    """The location of a folder inside that of another.

    >>> inside("s3://bucket/goods?region=x", "book"), inside("/goods", "book")
    ('s3://bucket/goods/book?region=x', '/goods/book')
    """
    text = os.fspath(location)
    path, mark, query = text.partition("?") if is_uri(location) else (text, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


def storage_at(location: Location) -> Storage:
    """The storage at a local path, a `file:` URI or any URI that pyarrow opens."""
    if not is_uri(location):
        return LocalStorage(local_path(location))
    if "\0" in str(location):
        raise OptionError(f"{without_secrets(location)!r} has a null character: no path has one.")
    remote = RemoteStorage.of_uri(str(location))
    return LocalStorage(Path(remote.root)) if remote.is_local else remote


def local_path(location: Location, argument: str = "path") -> Path:
    """A path of this machine; `OptionError` if it is something else."""
    given: object = location
    if not isinstance(given, str | os.PathLike) or isinstance(os.fspath(given), bytes):
        raise OptionError(f"{argument} is a {type(given).__name__}; give a path or a URI as text.")
    if is_uri(location):
        raise OptionError(
            f"{argument}={without_secrets(location)!r} is a URI, but must be on a local disk. Give "
            "a local path."
        )
    if hides(location):
        # As a local path it would be shown as it is.
        raise OptionError(
            f"{argument}={without_secrets(location)!r} is no URI, but has what looks like a "
            "password, which is not shown. Write a URI as scheme://…, and put ./ before a local "
            "path that is meant like this."
        )
    if "\0" in os.fspath(location):
        raise OptionError(f"{argument}={location!r} has a null character: no path has one.")
    return Path(location)
