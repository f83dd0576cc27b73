"""A version in the making. Its new files are removed again unless it is committed."""

from __future__ import annotations

import contextlib
from collections.abc import Container
from types import TracebackType

from semistream.crash_points import reached
from semistream.errors import SemistreamError
from semistream.relation.storage import (
    Storage,
    harmless,
    storage_error,
    storage_faults,
    unused_name,
)
from semistream.relation.versions.manifest import Manifest, commit_manifest, may_be_committed

__all__ = ["Draft"]


class Draft:
    """Names and removes the files of one build; use it as a context manager."""

    def __init__(self, storage: Storage, version: int) -> None:
        self.storage = storage
        self.version = version
        self.stem = unused_name(f"{version:08d}")
        """The beginning of all its file names, whichever task writes them."""
        self._folders: list[str] = []
        self._manifest: Manifest | None = None

    def __enter__(self) -> Draft:
        with storage_faults(self.storage.path, "written"):
            self._folders = self.storage.prepare()
        reached("draft.begun")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        # A commit may fail after its manifest became visible. Then the version needs its files.
        if self._manifest is not None and may_be_committed(self.storage, self._manifest):
            then = f"Version {self.version} may be there all the same: look at history(). "
        else:
            then = f"Nothing of version {self.version} is visible. "
            with contextlib.suppress(OSError):
                self.sweep(())
            self.storage.remove(self._folders)
        if isinstance(error, OSError) and not isinstance(error, SemistreamError):
            what = f"{self.storage.path} cannot be written"
            raise storage_error(error, what, then) from harmless(error)

    def file(self, kind: str) -> str:
        """The name of a new file in the folder `data`, such as "pages.arrow"."""
        return f"{self.stem}.{kind}"

    def sweep(self, keep: Container[str]) -> None:
        """Remove the draft's files except those in `keep`: left-overs of tasks that ran again."""
        entries = self.storage.entries("data")
        self.storage.remove(
            f"data/{entry.name}"
            for entry in entries
            if entry.name.startswith(self.stem) and entry.name not in keep
        )

    def commit(self, manifest: Manifest) -> None:
        """Make the version visible; `MasterExistsError` if another writer was first."""
        self._manifest = manifest
        commit_manifest(self.storage, manifest)
