"""The manifest: the one small file that makes a version of a master table exist.

It is written last and appears at once. Readers look for the highest number under `versions/`,
so a build that stopped half-way leaves files that nobody sees.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import MasterExistsError, MasterFormatError, MasterNotFoundError
from semistream.relation import files

__all__ = [
    "FORMAT_VERSION",
    "Manifest",
    "StoredFile",
    "commit_manifest",
    "encode_schema",
    "newest_version",
    "read_manifest",
]

FORMAT_VERSION = 1
"""The newest format this release can read, and the one it writes."""

_NAME = re.compile(r"(\d{8,})\.json")


@dataclass(frozen=True)
class StoredFile:
    """A data file of a version."""

    name: str
    bytes: int
    checksum: str

    @classmethod
    def of(cls, path: Path) -> StoredFile:
        """The record of a file as it is on the disk now."""
        return cls(path.name, path.stat().st_size, files.checksum_file(path))


@dataclass(frozen=True)
class Manifest:
    """All that is known of one version of a master table without opening its data."""

    version: int
    created: str
    """UTC, ISO 8601."""
    key: tuple[str, ...]
    layout: str
    row_count: int
    page_count: int
    rows_without_key: int
    """Rows left out because a key component was null."""
    page_bytes: int
    widest_row: int
    """Bytes that no row passes when it stands alone in Arrow memory."""
    schema: str
    """The Arrow schema of the stored pages, serialised, base64."""
    code_column: str | None
    """The stored column that holds hashed codes and is not the user's."""
    files: Mapping[str, StoredFile]
    """By role: pages, index; for layout "given" locator, locator_index; filter if one was built."""
    format_version: int = FORMAT_VERSION

    @property
    def stored_schema(self) -> pa.Schema:
        """The Arrow schema of the stored pages."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))


def encode_schema(schema: pa.Schema) -> str:
    """An Arrow schema as a manifest holds it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def newest_version(root: Path) -> int:
    """The highest committed version at `root`, or 0 if there is none."""
    directory = root / "versions"
    if not directory.is_dir():
        return 0
    found = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return max((int(match[1]) for match in found if match), default=0)


def read_manifest(root: Path, version: int | None = None) -> Manifest:
    """The manifest of a version, by default the newest."""
    wanted = newest_version(root) if version is None else version
    path = _path(root, wanted)
    if wanted == 0 or not path.is_file():
        what = "There is no master table" if version is None else f"There is no version {version}"
        raise MasterNotFoundError(
            f"{what} at {root}. Check the path, or build one with MasterTable.from_arrow."
        )
    return _decode(path, files.read_bytes(path))


def commit_manifest(root: Path, manifest: Manifest) -> None:
    """Make the version visible, at once and for good; `MasterExistsError` if it is taken."""
    content = asdict(manifest)
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=2, sort_keys=True)
    try:
        files.publish(_path(root, manifest.version), text.encode())
    except FileExistsError as error:
        raise MasterExistsError(
            f"Version {manifest.version} of {root} was committed by another build meanwhile. "
            "Nothing of this build is visible; run it again."
        ) from error


def _path(root: Path, version: int) -> Path:
    return root / "versions" / f"{version:08d}.json"


def _checksum(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return files.checksum_bytes(canonical.encode())


def _decode(path: Path, data: bytes) -> Manifest:
    try:
        content = json.loads(data)
        format_version = content["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise _broken(path, f"it is not a manifest ({error})") from error
    # Before the checksum: a newer format may be summed in another way.
    if isinstance(format_version, int) and format_version > FORMAT_VERSION:
        raise MasterFormatError(
            f"{path} has format {format_version}; this semistream reads up to {FORMAT_VERSION}. "
            "Upgrade semistream."
        )
    checksum = content.pop("checksum", None)
    if checksum != _checksum(content):
        raise _broken(path, "its content does not have the checksum it states")
    try:
        stored = {role: StoredFile(**entry) for role, entry in content.pop("files").items()}
        return Manifest(**{**content, "key": tuple(content["key"])}, files=stored)
    except (KeyError, TypeError, AttributeError) as error:
        raise _broken(path, f"its fields are not those of a manifest ({error})") from error


def _broken(path: Path, reason: str) -> MasterFormatError:
    return MasterFormatError(
        f"Manifest {path} is broken: {reason}. Restore it, or build the master again."
    )
