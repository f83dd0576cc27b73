"""Folders that Spark fills and the driver reads: a batch is there whole, or not at all.

Spark writes a folder file by file. So that nobody sees half of one, it is written under a name that
readers skip, and then renamed, which is atomic on local disks and HDFS:

    path/_writing.7/…  ─►  path/_writing.7/_committed.json  ─►  path/batch=7/…

Object stores have no such rename. There Spark writes to the folder itself, and `_committed.json`,
written last, says that it is whole. Either way a folder without that file is unfinished, and is
written again. Spark, Arrow and Hive skip names that begin with `_`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from semistream.crash_points import reached
from semistream.errors import OptionError, SinkError
from semistream.relation.storage import (
    Location,
    hides,
    is_uri,
    local_path,
    opened,
    without_secrets,
)

__all__ = ["Folder", "Note"]

Note = Mapping[str, Any]
"""The content of `_committed.json`."""

_COMMITTED: Final = "_committed.json"
_OWNER: Final = "_semistream.json"
_FORMAT_FIELD: Final = "format"
_FORMAT: Final = 1
"""Of both files; those of earlier releases have no number and are of this format too."""
_WRITING: Final = "_writing."
_ROWS_AT_A_TIME: Final = 1 << 15
_RENAMES: Final = frozenset({"local", "hdfs"})
_HADOOP_S3: Final = re.compile(r"^s3[an]://")


class Folder:
    """A folder, known to Spark by `spark` and to the driver through pyarrow."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, spark: str) -> None:
        """Made by `at` and by `/`; nothing is created yet."""
        self.filesystem = filesystem
        self.path = path
        self.spark = spark

    @classmethod
    def at(cls, location: Location) -> Folder:
        """The folder at a local path, or at a URI that Spark and pyarrow both open."""
        if not is_uri(location):
            # As a URI, or Spark would look for it on the cluster's default filesystem.
            path = os.path.abspath(local_path(location))
            return cls(pafs.LocalFileSystem(), path, f"file://{path}")
        uri = str(location).rstrip("/")
        if hides(uri):
            raise OptionError(
                f"{without_secrets(uri)} is given with a user, a password or options, which Spark "
                "would show in its plans and logs, and does not use. Give them in the environment "
                "and in settings of Spark, such as spark.hadoop.fs.s3a.secret.key."
            )
        filesystem, path = opened(
            _HADOOP_S3.sub("s3://", uri),
            "Give a local path, or a URI that both Spark and pyarrow.fs.FileSystem.from_uri take.",
            shown=uri,
        )
        return cls(filesystem, path.rstrip("/"), uri)

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.filesystem, f"{self.path}/{name}", f"{self.spark}/{name}")

    @property
    def shown(self) -> str:
        """Its URI without passwords, for people to read."""
        return without_secrets(self.spark)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def local(self) -> str | None:
        """Its path on this machine; None if it is elsewhere."""
        return self.path if self.filesystem.type_name == "local" else None

    def sibling(self, name: str) -> Folder:
        """The folder of another name beside it."""
        return Folder(
            self.filesystem, f"{self._parent()}/{name}", f"{self.spark.rpartition('/')[0]}/{name}"
        )

    def names(self) -> list[str]:
        """What is in it, sorted, without names that Spark skips; empty if it does not exist."""
        selector = pafs.FileSelector(self.path, allow_not_found=True)
        found = (info.base_name for info in self.filesystem.get_file_info(selector))
        return sorted(n for n in found if not n.startswith(".") and (n[0] != "_" or "=" in n))

    def exists(self) -> bool:
        """Whether there is such a folder."""
        return bool(self.filesystem.get_file_info(self.path).type == pafs.FileType.Directory)

    def note(self) -> Note | None:
        """What `_committed.json` says; None if the folder is not whole."""
        return self._read(_COMMITTED)

    def fill(self, write: Callable[[str], None], note: Callable[[Folder], Note]) -> Note:
        """Let Spark write it, commit it with a note made from what was written; that note.

        A folder that is whole already is left as it is.
        """
        if (known := self.note()) is not None:
            return known
        renames = self.filesystem.type_name in _RENAMES
        target = self.sibling(_WRITING + self.name.rpartition("=")[2]) if renames else self
        target.remove()
        try:
            write(target.spark)
            made = note(target)
        except BaseException:
            target.remove()
            raise
        reached("folder.written")
        target._write(_COMMITTED, made)
        reached("folder.noted")
        if renames:
            # A folder without a note may be left here by a repair of the disk or by hand.
            self.remove()
            self.filesystem.move(target.path, self.path)
        reached("folder.moved")
        return made

    def claim(self, owner: str, what: str) -> None:
        """Mark it as the owner's; `SinkError` if it belongs to another."""
        if (known := self._read(_OWNER)) is None:
            if any("=" in name for name in self.names()):
                raise SinkError(
                    f"{self.shown} has folders of batches, but it is not known whose. Give "
                    f"{what} a folder of its own."
                )
            self.create()
            self._write(_OWNER, {"owner": owner})
        elif known.get("owner") != owner:
            raise SinkError(
                f"{self.shown} has the batches of another pipeline, or of another route of this "
                f"one, and batches are known by their numbers. Give {what} a folder of its own, or "
                "go on with the checkpoint that the folder was written with."
            )

    def create(self) -> None:
        """Make it, and the folders that it is in."""
        self.filesystem.create_dir(self.path, recursive=True)

    def take_file(self, file: Folder) -> None:
        """Move a file of the same filesystem into it."""
        self.filesystem.move(file.path, self._place(file.name))

    def can_become(self, target: Folder) -> bool:
        """Whether `become` can give it to the target: it is on the same filesystem."""
        if self.local is None or target.local is None:
            return bool(self.filesystem.equals(target.filesystem))
        return _device(self.local) == _device(target.local)

    def become(self, target: Folder, note: Note) -> None:
        """Make its files those of the target, all at once, unless the target is whole already."""
        if target.note() is not None:
            return
        if not self.exists():
            raise SinkError(
                f"{target.shown} was written before, and is gone. Restore it from a backup, with "
                "the checkpoint, or begin with a new checkpoint."
            )
        target.remove()
        reached("become.cleared")
        self._write(_COMMITTED, note)
        reached("become.noted")
        self.move(target)
        reached("become.moved")

    def move(self, target: Folder) -> None:
        """Move it to the target, unless that was done before; both are on one filesystem."""
        if not self.exists():
            return
        if self.filesystem.type_name in _RENAMES:
            if not target.exists():
                self.filesystem.create_dir(target._parent(), recursive=True)
                self.filesystem.move(self.path, target.path)
        else:
            # A copy may have stopped half-way before, so it is made again as long as this exists.
            target.create()
            selector = pafs.FileSelector(self.path)
            names = {info.base_name for info in self.filesystem.get_file_info(selector)}
            for name in sorted(names, key=lambda name: (name == _COMMITTED, name)):
                self.filesystem.copy_file(self._place(name), target._place(name))

    def row_count(self) -> int:
        """How many rows its Parquet files have, by their footers."""
        selector = pafs.FileSelector(self.path, allow_not_found=True, recursive=True)
        return sum(
            pq.read_metadata(info.path, filesystem=self.filesystem).num_rows
            for info in self.filesystem.get_file_info(selector)
            if info.base_name.endswith(".parquet")
        )

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of its Parquet files, some at a time."""
        for name in self.names():
            if name.endswith(".parquet"):
                with self.filesystem.open_input_file(self._place(name)) as file:
                    yield from pq.ParquetFile(file).iter_batches(_ROWS_AT_A_TIME)

    def remove(self) -> None:
        """Remove it with all that is in it, if it exists."""
        if self.exists():
            self.filesystem.delete_dir(self.path)

    def _read(self, name: str) -> Note | None:
        try:
            with self.filesystem.open_input_stream(self._place(name)) as file:
                found = json.loads(file.read())
            if not isinstance(found, dict):
                raise ValueError(f"it is a {type(found).__name__}")
        except FileNotFoundError:
            return None
        except ValueError as error:
            if name == _COMMITTED:
                # A put that was cut off: the folder is unfinished.
                return None
            raise SinkError(
                f"{self.shown}/{name} is broken: {error}. It says whose folder this is. Restore it "
                "from a copy, or give a folder of its own."
            ) from error
        version = found.pop(_FORMAT_FIELD, _FORMAT)
        if version != _FORMAT:
            raise SinkError(
                f"{self.shown}/{name} has format {version}, but this semistream knows {_FORMAT}. "
                "Go on with the semistream that wrote it, or upgrade."
            )
        return found

    def _write(self, name: str, content: Note) -> None:
        """Write a small file. Where files can be renamed, it appears with its whole content."""
        data = json.dumps({_FORMAT_FIELD: _FORMAT, **content}).encode()
        renames = self.filesystem.type_name in _RENAMES
        written = self._place(f".{name}.new" if renames else name)
        with self.filesystem.open_output_stream(written) as file:
            file.write(data)
        reached("note.hidden")
        if renames:
            self.filesystem.move(written, self._place(name))

    def _place(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _parent(self) -> str:
        return self.path.rpartition("/")[0]


def _device(path: str) -> int:
    """The filesystem that a path of this machine is on, or would be on."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return os.stat(path).st_dev
