"""Shed file: stream tuples that were shed, on disk until they come back, first in first out.

    folder/  shed-00000007.arrows   oldest segment, read from the cursor on
             shed-00000008.arrows   …
             shed-00000009.arrows   newest segment, written
             cursor.json            {"segment": 7, "tuples": 120}: what is before is back

A segment is an Arrow IPC stream, so that any Arrow tool can read it and a crash leaves all of
its whole batches readable. `sync` makes what was appended durable. The cursor moves, atomically
and durably, before tuples are handed back: after a crash every tuple that was not back is found
again, and none that was. A segment is removed once all its tuples are back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from semistream.errors import ShedFileError, ShedSpaceError
from semistream.parts.timed_stream import Timed

_SEGMENT = re.compile(r"shed-(\d{8})\.arrows")
_SINCE: Final = b"semistream.since"
_MOST_ROWS = 4096
"""Tuples per record batch: what a reader holds at once."""
_LARGEST_SEGMENT = 16 << 20
_SLACK = 256
"""Bytes of a message that Arrow does not tell beforehand: the time, and the end of the stream."""


class _Segment:
    """One file: how many tuples and bytes it has, and whether they are from an earlier run."""

    def __init__(self, path: Path, tuples: int = 0, size: int = 0, old: bool = False) -> None:
        self.path = path
        self.tuples = tuples
        self.bytes = size
        self.old = old

    @property
    def number(self) -> int:
        return int(self.path.name[5:13])


class _Scanned(NamedTuple):
    schema: pa.Schema | None
    tuples: int
    whole_bytes: int


class ShedFile:
    """A queue of stream tuples on disk. Made by `recover`."""

    def __init__(self, folder: Path, max_bytes: int, lock: int) -> None:
        """Empty."""
        self.folder = folder
        self.max_bytes = max_bytes
        self.torn_bytes = 0
        """Bytes of an append that a crash cut off; its tuples had not been let go of."""
        self.schema: pa.Schema | None = None
        self._segments: deque[_Segment] = deque()
        self._tuples = 0
        self._back = 0
        self._number = 1
        self._now = 0.0
        self._sink: Any = None
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._reading: Iterator[Timed] | None = None
        self._rest: Timed | None = None
        self._unlock = weakref.finalize(self, os.close, lock)

    @classmethod
    def recover(cls, folder: str | Path, max_bytes: int = 1 << 30, now: float = 0.0) -> Self:
        """Open a folder, made if need be, with the tuples that an earlier run left in it.

        Those wait since `now`: clocks of different runs cannot be compared.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        file = cls(folder, max_bytes, _lock(folder))
        file._now = now
        file._find()
        return file

    def __len__(self) -> int:
        """How many tuples are not yet back."""
        return self._tuples

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.bytes for segment in self._segments)

    def expect(self, schema: pa.Schema) -> None:
        """Refuse to mix tuples of another stream with those that are here."""
        if self._segments and self.schema is not None and not schema.equals(self.schema):
            raise ShedFileError(
                f"{self.folder} holds shed tuples with the schema\n{self.schema}\nbut the stream "
                f"has\n{schema}\nShed to another folder, or finish the other stream first."
            )
        self.schema = schema

    def has_room(self, batch: pa.RecordBatch) -> bool:
        """Whether appending the batch would keep to `max_bytes`."""
        sizes = (pa.ipc.get_record_batch_size(part) for part in _parts(batch))
        needed = sum(size + _SLACK for size in sizes)
        if self._writer is None:
            needed += batch.schema.serialize().size + _SLACK
        return bool(self.bytes + needed <= self.max_bytes)

    def append(self, since: float, batch: pa.RecordBatch) -> None:
        """Put tuples behind the others; durable after `sync`."""
        if not self.has_room(batch):
            raise ShedSpaceError(
                f"{self.folder} holds {self.bytes:,} bytes of shed tuples; {batch.num_rows:,} "
                f"more would pass max_bytes={self.max_bytes:,}. Give the join more memory or the "
                'folder more room, or let the stream buffer grow with when_full="block".'
            )
        self.expect(batch.schema)
        with self._writing():
            segment = self._open_segment(batch.schema)
            assert self._writer is not None
            for part in _parts(batch):
                self._writer.write_batch(part, custom_metadata={_SINCE: repr(since)})
            self._sink.flush()
            segment.bytes = self._sink.tell()
            segment.tuples += batch.num_rows
        self._tuples += batch.num_rows

    def sync(self) -> None:
        """Wait until what was appended is on the disk."""
        if self._sink is not None:
            os.fsync(self._sink.fileno())
            if self._segments[-1].bytes >= min(_LARGEST_SEGMENT, self.max_bytes // 16):
                self._seal()

    def take(self, count: int) -> list[Timed]:
        """The oldest `count` tuples, or all; they are back, also if a crash follows."""
        taken: list[Timed] = []
        finished: list[_Segment] = []
        count = min(count, self._tuples)
        while count:
            segment = self._segments[0]
            if segment.tuples == self._back:
                finished.append(self._leave())
                continue
            piece = self._next_piece(count)
            taken.append(piece)
            self._back += piece.batch.num_rows
            self._tuples -= piece.batch.num_rows
            count -= piece.batch.num_rows
        while self._segments and self._segments[0].tuples == self._back:
            finished.append(self._leave())
        if taken:
            self._write_cursor()
            for segment in finished:
                segment.path.unlink()
        return taken

    def close(self) -> None:
        """Close the files and let others have the folder; what is not back stays in it."""
        self._seal()
        self._reading = None
        if not self._segments:
            (self.folder / "cursor.json").unlink(missing_ok=True)
        self._unlock()

    def check(self) -> None:
        """Assert that counts, files and the bound agree."""
        assert self._tuples == sum(s.tuples for s in self._segments) - self._back
        assert [segment.path for segment in self._segments] == _segment_paths(self.folder)
        assert all(s.path.stat().st_size == s.bytes for s in self._segments)
        assert self.bytes <= self.max_bytes

    def _open_segment(self, schema: pa.Schema) -> _Segment:
        if self._writer is None:
            path = self.folder / f"shed-{self._number:08}.arrows"
            self._number += 1
            self._sink = open(path, "xb")  # noqa: SIM115 (it stays open until `_seal`)
            self._segments.append(_Segment(path))
            self._writer = pa.ipc.new_stream(self._sink, schema)
            _sync_folder(self.folder)
        return self._segments[-1]

    def _seal(self) -> None:
        """The newest segment is written to no more."""
        if self._writer is not None:
            segment = self._segments[-1]
            self._writer.close()
            self._sink.flush()
            os.fsync(self._sink.fileno())
            segment.bytes = self._sink.tell()
            self._sink.close()
            self._writer = self._sink = None

    def _abandon(self) -> None:
        """Write no more to the newest segment: it ends with the last whole append."""
        sink, self._sink, self._writer = self._sink, None, None
        with contextlib.suppress(OSError):
            sink.close()
        if self._segments and not self._segments[-1].tuples:
            self._segments.pop()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Name what failed; half an append is cut off when the folder is opened again."""
        try:
            yield
        except OSError as error:
            self._abandon()
            raise ShedSpaceError(
                f"Shed tuples cannot be written to {self.folder}: {error}. Make room there, or "
                "shed to another folder; what was shed before is safe and comes back in a new run."
            ) from error

    def _next_piece(self, count: int) -> Timed:
        """At most `count` tuples that wait since the same time, of the oldest segment."""
        if self._reading is None:
            if len(self._segments) == 1:
                self._seal()
            self._reading = self._read(self._segments[0], self._back)
        if self._rest is None:
            self._rest = next(self._reading)
        since, batch = self._rest
        piece = Timed(since, batch.slice(0, count))
        self._rest = None if batch.num_rows <= count else Timed(since, batch.slice(count))
        return piece

    def _read(self, segment: _Segment, skip: int) -> Iterator[Timed]:
        with pa.OSFile(str(segment.path)) as source, pa.ipc.open_stream(source) as reader:
            left = segment.tuples
            while left > 0:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
                left -= batch.num_rows
                since = self._now if segment.old else float(metadata[_SINCE])
                if skip < batch.num_rows:
                    yield Timed(since, batch.slice(skip))
                skip = max(0, skip - batch.num_rows)

    def _leave(self) -> _Segment:
        """All tuples of the oldest segment are back."""
        if len(self._segments) == 1:
            self._seal()
        self._back = 0
        self._reading = self._rest = None
        return self._segments.popleft()

    def _write_cursor(self) -> None:
        number = self._segments[0].number if self._segments else self._number
        content = json.dumps({"segment": number, "tuples": self._back})
        temporary = self.folder / "cursor.json.new"
        with open(temporary, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.folder / "cursor.json")
        _sync_folder(self.folder)

    def _find(self) -> None:
        """Count what an earlier run left, without the tuples that came back to it."""
        number, back = self._read_cursor()
        paths = _segment_paths(self.folder)
        for path in paths:
            segment = _Segment(path, old=True)
            self._number = max(segment.number, number) + 1
            if segment.number < number:
                path.unlink()
                continue
            self._admit(segment, path is paths[-1])
        if self._segments and self._segments[0].number == number:
            self._back = back
            if back > self._segments[0].tuples:
                raise ShedFileError(
                    f"{self._segments[0].path} has {self._segments[0].tuples:,} tuples, but "
                    f"{back:,} of it are back by cursor.json. Restore the files of {self.folder}."
                )
        self._number = max(self._number, number)
        self._tuples = sum(segment.tuples for segment in self._segments) - self._back

    def _admit(self, segment: _Segment, newest: bool) -> None:
        found, size = _scan(segment.path), segment.path.stat().st_size
        if found.whole_bytes < size:
            if not newest:
                raise ShedFileError(
                    f"{segment.path} is broken after {found.tuples:,} tuples: bytes "
                    f"{found.whole_bytes:,} to {size:,} cannot be read. Restore the file, or move "
                    "it away to go on without the tuples that it holds."
                )
            self.torn_bytes = size - found.whole_bytes
            os.truncate(segment.path, found.whole_bytes)
        if found.schema is None or not found.tuples:
            segment.path.unlink()
            return
        segment.tuples, segment.bytes = found.tuples, found.whole_bytes
        self.expect(found.schema)
        self._segments.append(segment)

    def _read_cursor(self) -> tuple[int, int]:
        try:
            cursor = json.loads((self.folder / "cursor.json").read_text())
            return int(cursor["segment"]), int(cursor["tuples"])
        except FileNotFoundError:
            return 0, 0
        except (ValueError, KeyError, TypeError) as error:
            raise ShedFileError(
                f"{self.folder / 'cursor.json'} is broken: {error}. Without it all tuples of the "
                "segments come back, some for the second time: remove it if that may be."
            ) from error


def _scan(path: Path) -> _Scanned:
    """Schema, tuples and bytes of the whole batches of a segment."""
    schema, tuples, whole = None, 0, 0
    with pa.OSFile(str(path)) as source, contextlib.suppress(pa.ArrowInvalid, OSError):
        reader = pa.ipc.open_stream(source)
        schema = reader.schema
        whole = source.tell()
        for batch in reader:
            tuples += batch.num_rows
            whole = source.tell()
        whole = source.tell()
    return _Scanned(schema, tuples, whole)


def _parts(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch.slice(at, _MOST_ROWS) for at in range(0, batch.num_rows, _MOST_ROWS)]


def _segment_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _SEGMENT.fullmatch(path.name))


def _lock(folder: Path) -> int:
    """Keep other runs out of the folder as long as the descriptor is open."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ShedFileError(
            f"Another run sheds to {folder}. Give each run a folder of its own."
        ) from error
    return descriptor


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
