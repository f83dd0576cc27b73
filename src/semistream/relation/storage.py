"""From a user's path or URI to the storage behind it."""

from __future__ import annotations

import os
from pathlib import Path

from semistream.errors import OptionError
from semistream.relation.files import Location, Storage, is_uri
from semistream.relation.local_storage import LocalStorage
from semistream.relation.remote_storage import RemoteStorage

__all__ = ["storage_at"]


def storage_at(location: Location) -> Storage:
    """The storage at a local path, a `file:` URI or any URI that pyarrow opens."""
    if not isinstance(location, str | os.PathLike):
        raise OptionError(f"{location!r} must be the path, or the URI, of a master table.")
    if not is_uri(location):
        return LocalStorage(Path(os.fspath(location)))
    remote = RemoteStorage.of_uri(str(location))
    return LocalStorage(Path(remote.root)) if remote.is_local else remote
