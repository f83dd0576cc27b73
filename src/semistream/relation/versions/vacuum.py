"""The versions that exist, and the removal of those that are no longer needed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

from semistream.crash_points import reached
from semistream.errors import MasterFormatError, MasterNotFoundError, OptionError
from semistream.relation.storage import FOLDERS, FileEntry, Storage
from semistream.relation.versions.manifest import (
    Manifest,
    committed_versions,
    manifest_name,
    read_manifest,
    version_of,
)

__all__ = ["Vacuumed", "VersionInfo", "history", "vacuum"]


@dataclass(frozen=True)
class VersionInfo:
    """A version in the history of a master table."""

    version: int
    created: str
    """UTC, ISO 8601."""
    row_count: int
    page_count: int
    operation: str
    """What made it: "build", "upsert 1,200 keys", "delete 3 keys", "compact"."""


@dataclass(frozen=True)
class Vacuumed:
    """What a vacuum has removed."""

    versions: tuple[int, ...]
    files: tuple[str, ...]
    """Names inside the folder of the master table, manifests included."""
    bytes: int
    left: tuple[str, ...] = ()
    """Names that should have been removed and are still there, on a read-only disk for example."""


def history(storage: Storage) -> list[VersionInfo]:
    """The versions that are still there, oldest first."""
    return [
        VersionInfo(one.version, one.created, one.row_count, one.page_count, one.operation)
        for one in _whole(storage).values()
    ]


def vacuum(
    storage: Storage, keep_versions: int, pinned: Iterable[int], grace_seconds: float
) -> Vacuumed:
    """Remove old versions that are not pinned, and files that no remaining version names."""
    if type(keep_versions) is not int or keep_versions < 1:
        raise OptionError(f"keep_versions={keep_versions!r} must be an int of at least 1.")
    if not _is_number(grace_seconds):
        raise OptionError(f"grace_seconds={grace_seconds!r} must be a number of seconds.")
    pins = _numbers(pinned)
    # Files are listed before manifests are read, so a version committed in between keeps its files.
    data = storage.entries("data")
    versions = storage.entries("versions")
    whole = _whole(storage)
    numbers = sorted(whole)
    kept = {*numbers[-keep_versions:], *pins}
    gone = [number for number in numbers if number not in kept]
    old = time.time() - grace_seconds
    removed = [entry for entry in versions if _expired(entry, gone, whole, old)]
    named = {file.name for number in numbers if number in kept for file in whole[number].data_files}
    dropped = {file.name for number in gone for file in whole[number].data_files}
    stale = [
        entry
        for entry in data
        if entry.name not in named and (entry.name in dropped or entry.modified < old)
    ]
    manifests = {f"versions/{entry.name}": entry.bytes for entry in removed}
    files = {f"data/{entry.name}": entry.bytes for entry in stale}
    # Manifests go first, so that no version is visible while its files are being removed.
    reached("vacuum.chosen")
    storage.remove(manifests)
    reached("vacuum.manifests")
    storage.remove(files)
    reached("vacuum.files")
    sizes = manifests | files
    there = _there(storage) if sizes else set()
    left = tuple(name for name in sizes if name in there)
    away = tuple(name for name in sizes if name not in left)
    numbers = [number for number in gone if manifest_name(number) not in left]
    return Vacuumed(tuple(numbers), away, sum(sizes[name] for name in away), left)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not math.isnan(float(value))


def _numbers(pinned: object) -> list[int]:
    """The versions to keep, as a list; `OptionError` if they are none."""
    if isinstance(pinned, Iterable):
        pins: list[int] = list(pinned)
        if all(type(number) is int for number in pins):
            return pins
    raise OptionError(f"pinned={pinned!r} must be a list of versions' numbers.")


def _there(storage: Storage) -> set[str]:
    return {f"{folder}/{one.name}" for folder in FOLDERS for one in storage.entries(folder)}


def _whole(storage: Storage) -> dict[int, Manifest]:
    """The complete manifests. Raises for one that was complete once and is now damaged."""
    found: dict[int, Manifest] = {}
    for number in committed_versions(storage):
        try:
            found[number] = read_manifest(storage, number)
        except MasterNotFoundError:
            # Another vacuum has removed it. If it is there after all, the storage is not to be
            # trusted, and to go on would remove the files of a version that is whole.
            if storage.sizes([manifest_name(number)]) != [None]:
                raise MasterFormatError(
                    f"{storage.shown(manifest_name(number))} is there, but cannot be read. Nothing "
                    "was removed. Try again once the disk is well."
                ) from None
        except MasterFormatError:
            if storage.is_sealed(manifest_name(number)):
                raise
    return found


def _expired(entry: FileEntry, gone: list[int], whole: dict[int, Manifest], old: float) -> bool:
    """Whether a file of the folder `versions` is to be removed.

    That is a manifest or seal of a removed version, or a left-over of a stopped writer.
    """
    stem = entry.name.partition(".")[0]
    number = version_of(f"{stem}.json")
    if number in gone:
        return True
    sound = number in whole and not entry.name.endswith(".claim")
    return not sound and entry.modified < old
