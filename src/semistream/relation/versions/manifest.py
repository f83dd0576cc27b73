"""The manifest: the one small file that makes a version of a master table exist.

It is written last and appears at once. Readers look for the highest number under `versions/`, so
nobody sees the files of a build that stopped half-way.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from semistream.crash_points import reached
from semistream.errors import (
    MasterExistsError,
    MasterFormatError,
    MasterNotFoundError,
    OptionError,
)
from semistream.relation.storage import Storage, checksum_bytes, storage_faults
from semistream.relation.versions.manifest_rules import OPTIONAL, manifest_fault, unknown_fields

__all__ = [
    "FORMAT_VERSION",
    "Manifest",
    "StoredFile",
    "commit_manifest",
    "committed_versions",
    "encode_schema",
    "manifest_name",
    "may_be_committed",
    "newest_version",
    "now",
    "read_manifest",
    "store",
    "unused_id",
    "version_of",
]

FORMAT_VERSION = 2
"""The format this release reads and writes."""

_NAME = re.compile(r"(\d{8,})\.json")


@dataclass(frozen=True)
class StoredFile:
    """A data file of a version."""

    name: str
    """Its name in the folder `data`."""
    bytes: int
    checksum: str = ""
    """Checksum of the whole file; empty for page files, where each page has its own."""

    @property
    def path(self) -> str:
        """The name inside the folder of the master table."""
        return f"data/{self.name}"


def store(storage: Storage, name: str, data: bytes | memoryview) -> StoredFile:
    """Write a small file into the folder `data`. Returns its record for the manifest."""
    storage.write(f"data/{name}", data)
    return StoredFile(name, len(data), checksum_bytes(data))


def unused_id() -> str:
    """An id that no other writer will choose."""
    return secrets.token_hex(8)


def now() -> str:
    """The time of a commit: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Manifest:
    """What is known of one version of a master table without opening its data."""

    version: int
    key: tuple[str, ...]
    layout: str
    row_count: int
    page_count: int
    rows_without_key: int
    """Rows that the build and all updates since left out because a key column was null."""
    page_bytes: int
    widest_row: int
    """An upper bound of the bytes of a single row alone in Arrow memory."""
    schema: str
    """The Arrow schema of the stored pages, serialised, base64."""
    code_column: str | None
    """The stored column that holds hashed codes and is not the user's."""
    files: Mapping[str, StoredFile]
    """By role: "index"; "locator_index" for layout "given"; "filter" if one was built."""
    page_files: tuple[StoredFile, ...]
    """The files that the index's `file` column numbers."""
    shard_starts: tuple[int, ...]
    """The first page of each shard, then the number of pages."""
    locator_files: tuple[StoredFile, ...] = ()
    """The files that the `file` column of the locator's index numbers; for layout "given"."""
    locator_starts: tuple[int, ...] = ()
    """As `shard_starts`, for the locator's pages."""
    valid: tuple[str, str] | None = None
    """The columns from when to when a row is valid; no two rows of a key are at the same time."""
    compression: str | None = None
    """The codec that pages are compressed with: "lz4" or "zstd"; None if they are not."""
    operation: str = "build"
    """What made the version, for people to read."""
    created: str = field(default_factory=now)
    build_id: str = field(default_factory=unused_id)
    """Random; tells this writer's manifest from those of other writers."""
    format_version: int = FORMAT_VERSION

    @property
    def stored_schema(self) -> pa.Schema:
        """The Arrow schema of the stored pages."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))

    @property
    def data_files(self) -> list[StoredFile]:
        """All files of the version in the folder `data`."""
        return [*self.files.values(), *self.page_files, *self.locator_files]


def encode_schema(schema: pa.Schema) -> str:
    """An Arrow schema as a manifest holds it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def version_of(name: str) -> int | None:
    """The version whose manifest a file of the folder `versions` is; None if it is not one."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def committed_versions(storage: Storage) -> list[int]:
    """The numbers of all manifests, oldest first; some may be incomplete."""
    found = (version_of(entry.name) for entry in storage.entries("versions"))
    numbers = sorted(number for number in found if number)
    # A listing may lag behind; to ask for a file by its name does not.
    while storage.sizes([manifest_name((numbers or [0])[-1] + 1)]) != [None]:
        numbers.append((numbers or [0])[-1] + 1)
    return numbers


def newest_version(storage: Storage) -> int:
    """The highest version number that is taken, or 0 if none is."""
    with storage_faults(storage.path, "read"):
        return max(committed_versions(storage), default=0)


def read_manifest(storage: Storage, version: int | None = None) -> Manifest:
    """The manifest of a version, by default of the newest that was ever complete."""
    if version is not None and type(version) is not int:
        raise OptionError(f"version={version!r} must be a version's number, or None: the newest.")
    with storage_faults(storage.path, "read"):
        return _found(storage, version)


def _found(storage: Storage, version: int | None) -> Manifest:
    wanted = committed_versions(storage) if version is None else [version]
    for number in reversed(wanted):
        name = manifest_name(number)
        try:
            return _decode(storage.shown(name), storage.read(name), number)
        except FileNotFoundError:
            continue
        except _BrokenManifestError:
            # Without a seal it was torn while being written, so it was never reported as committed
            # and an older version counts. See ADR 0008.
            if version is not None or storage.is_sealed(name):
                raise
    if version is not None and (there := committed_versions(storage)):
        raise MasterNotFoundError(
            f"There is no version {version} at {storage.path}; the versions there: "
            f"{_listed(there)}, of which {there[-1]} is the newest. Name one of these, or none for "
            "the newest. A vacuum removes old ones: it keeps those that queries are pinned to if "
            "it is given pinned=[…]."
        )
    if storage.is_file():
        raise MasterNotFoundError(f"{storage.path} is a file. Give the folder of a master table.")
    raise MasterNotFoundError(
        f"There is no master table at {storage.path}. Check the path, or build one: with "
        "MasterTable.build, MasterTable.from_arrow, or semistream master build."
    )


def _listed(versions: Sequence[int]) -> str:
    some = [str(version) for version in versions[-5:]]
    return ("…, " if len(versions) > len(some) else "") + ", ".join(some)


def commit_manifest(storage: Storage, manifest: Manifest) -> None:
    """Make the version visible at once; `MasterExistsError` if its number is taken."""
    _check_there(storage, manifest)
    reached("manifest.checked")
    content = asdict(manifest)
    for name in OPTIONAL:
        # So that older readers, which do not know of it, read all other master tables.
        if content[name] is None:
            del content[name]
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=2, sort_keys=True)
    try:
        storage.publish(manifest_name(manifest.version), text.encode(), manifest.build_id)
    except FileExistsError as error:
        raise MasterExistsError(
            f"Version {manifest.version} of {storage.path} was taken by another build or update "
            "meanwhile. Nothing of this one is visible: open the newest version and run it again. "
            "If no other is running, vacuum() clears what a stopped one has left."
        ) from error
    reached("manifest.published")


def may_be_committed(storage: Storage, manifest: Manifest) -> bool:
    """After a failed commit, whether its manifest is visible, or may be."""
    try:
        return manifest.build_id.encode() in storage.read(manifest_name(manifest.version))
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _check_there(storage: Storage, manifest: Manifest) -> None:
    """Raise if a file is missing: a vacuum removes files of builds that outlast its grace time."""
    stored = manifest.data_files
    sizes = storage.sizes([file.path for file in stored])
    gone = [file.name for file, size in zip(stored, sizes, strict=True) if size != file.bytes]
    if gone:
        raise MasterFormatError(
            f"Files of this build vanished from {storage.path} before it was committed: "
            f"{', '.join(gone[:3])}. Run it again, with a longer grace time of vacuum."
        )


def manifest_name(version: int) -> str:
    """The name of a version's manifest, relative to the folder of the master table."""
    return f"versions/{version:08d}.json"


def _checksum(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return checksum_bytes(canonical.encode())


def _decode(shown: str, data: bytes, version: int) -> Manifest:
    try:
        content = json.loads(data)
        format_version = content["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _broken(shown, f"it is not a manifest ({error})") from error
    # Checked before the checksum: another format may compute it in another way.
    if type(format_version) is int and format_version != FORMAT_VERSION:
        raise MasterFormatError(
            f"{shown} has format {format_version}; this semistream reads format {FORMAT_VERSION}. "
            + ("Upgrade semistream." if format_version > FORMAT_VERSION else "Build it again.")
        )
    checksum = content.pop("checksum", None)
    if checksum != _checksum(content):
        raise _broken(shown, "its content does not have the checksum it states")
    if unknown := unknown_fields(content):
        raise MasterFormatError(
            f"{shown} was written by a newer semistream: it has {', '.join(unknown)}, which this "
            "one does not know. Upgrade semistream."
        )
    if (fault := manifest_fault(content, version)) is not None:
        raise _broken(shown, fault)
    return _from_content(content)


def _from_content(content: dict[str, Any]) -> Manifest:
    for name in ("key", "shard_starts", "locator_starts"):
        content[name] = tuple(content[name])
    for name in ("page_files", "locator_files"):
        content[name] = tuple(StoredFile(**entry) for entry in content[name])
    content["valid"] = tuple(content["valid"]) if "valid" in content else None
    stored = {role: StoredFile(**entry) for role, entry in content.pop("files").items()}
    return Manifest(**content, files=stored)


class _BrokenManifestError(MasterFormatError):
    """A manifest that is incomplete or damaged."""


def _broken(shown: str, reason: str) -> MasterFormatError:
    return _BrokenManifestError(
        f"Manifest {shown} is broken: {reason}. Restore it, or build the master again."
    )
