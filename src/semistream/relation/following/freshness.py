"""Up to when a version of a master has all changes of its source.

Its mark says so, as of its commit. While the source has nothing new there is no new version; then
files beside the master say up to when that is known. Their names say all; the newest counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from semistream.errors import StaleMasterError
from semistream.relation.master_table import MasterTable
from semistream.relation.storage import Location, inside, is_database, storage_at
from semistream.relation.sync_mark import mark_of
from semistream.relation.versions.manifest import read_manifest

__all__ = ["Progress", "as_of", "check_fresh", "followed_as_of", "note_fresh", "progress"]

_FOLDER: Final = "fresh"


@dataclass(frozen=True)
class Progress:
    """How far a master has come with its source."""

    sequence_by: tuple[str, ...]
    position: int | None
    """The last batch of its source that has changed it; for Iceberg, the last snapshot. None for
    changes that are no stream."""
    committed: float
    """When that was committed, as seconds since 1970."""
    as_of: float
    """It has all changes of its source up to then."""

    @property
    def lag_seconds(self) -> float:
        """How long ago that is."""
        return max(time.time() - self.as_of, 0.0)


def as_of(location: Location, version: int | None = None) -> float:
    """Up to when a version, by default the newest, has all changes; as seconds since 1970.

    A master that follows nothing is as of when its version was made; one in a database, as of now.
    """
    if is_database(location):
        return time.time()
    manifest = read_manifest(storage_at(location), version)
    mark = mark_of(manifest.stored_schema)
    made = datetime.fromisoformat(manifest.created).timestamp() if mark is None else mark.as_of
    return max([made, *(at for of, at, _ in _notes(location) if of == manifest.version)])


def followed_as_of(location: Location, version: int) -> float | None:
    """The same, or None if the master follows nothing."""
    if is_database(location):
        return None
    mark = mark_of(read_manifest(storage_at(location), version).stored_schema)
    return None if mark is None else as_of(location, version)


def progress(location: Location) -> Progress | None:
    """How far the newest version has come; None if the master follows nothing."""
    manifest = read_manifest(storage_at(location))
    mark = mark_of(manifest.stored_schema)
    if mark is None:
        return None
    last: Any = [*mark.position.values()][-1] if mark.position else None
    if isinstance(last, dict):
        last = last["ids"][-1] if last.get("ids") else None
    made = datetime.fromisoformat(manifest.created).timestamp()
    return Progress(mark.sequence_by, last, made, as_of(location, manifest.version))


def check_fresh(
    location: Location, version: int | None, most: float, now: float | None = None
) -> None:
    """Raise `StaleMasterError` if a version is older than `most` seconds."""
    at = as_of(location, version)
    age = (time.time() if now is None else now) - at
    if age > most:
        shown = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
        raise StaleMasterError(
            f"The master at {storage_at(location).path} is as of {shown}, {age:,.0f} seconds ago, "
            f"and max_staleness allows {most:,.0f}. Look whether what brings it up to date still "
            "runs, then start again: nothing is lost."
        )


def note_fresh(location: Location, at: float) -> None:
    """Note that the newest version has all changes up to then."""
    version = MasterTable.latest_version(location)
    old = _notes(location)
    if any(of == version and known >= at for of, known, _ in old):
        return
    storage = storage_at(inside(location, _FOLDER))
    storage.prepare()
    storage.write(f"data/{version:08d}-{int(at * 1000):015d}", b"")
    storage.remove(f"data/{name}" for *_, name in old)


def _notes(location: Location) -> list[tuple[int, float, str]]:
    """The version, the time and the name of each note."""
    found = []
    for entry in storage_at(inside(location, _FOLDER)).entries("data"):
        version, _, millis = entry.name.partition("-")
        if version.isdigit() and millis.isdigit():
            found.append((int(version), int(millis) / 1000, entry.name))
    return found
