"""Shed file: stream tuples that were shed, on disk until they are joined, first in first out.

    folder/  shed-00000007.arrows   oldest segment
             shed-00000008.arrows   …
             shed-00000009.arrows   newest segment, written
             cursor.json            how many tuples of the oldest are done, and how many tuples
                                    and bytes each segment has that is written no more
             damaged-00000007.arrows    a segment with damage in the middle, as it was found; its
                                    whole batches are in the segment of the same number

           done │ taken: in memory │ still here
    ────────────┴──────────────────┴──────────── ► appended

`take` hands tuples out and `let_go` strikes them off once they are joined, so that a run that
ends in between, by a crash or by its caller, loses none of them: the next one finds all that
were not let go of. A segment is removed when all its tuples are.

What is appended is the operating system's at once, so that a crash of the process takes none of
it; `sync` makes it survive one of the machine, and is called about ten times a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa

from semistream.crash_points import reached
from semistream.errors import ShedFileError, ShedSpaceError
from semistream.parts.shed_segment import Segment, SegmentWriter, bytes_needed
from semistream.parts.timed_stream import Timed

_SEGMENT = re.compile(r"shed-(\d{8})\.arrows")
_FORMAT = 1
_LARGEST_SEGMENT = 16 << 20
_SYNC_SECONDS = 0.1
_SYNC_BYTES = 8 << 20


class _Cursor(NamedTuple):
    """The first segment that is needed, how many of its tuples are done, and what is sealed."""

    segment: int
    done: int
    sealed: dict[int, tuple[int, int]]


class ShedFile:
    """A queue of stream tuples on disk. Made by `recover`."""

    def __init__(self, folder: Path, max_bytes: int, lock: int) -> None:
        """Empty."""
        self.folder = folder
        self.max_bytes = max_bytes
        self.schema: pa.Schema | None = None
        self.taken = 0
        """Tuples that were handed out and not let go of."""
        self._segments: deque[Segment] = deque()
        self._tuples = 0
        self._done = 0
        self._numbers = count(1)
        self._now = 0.0
        self._writer: SegmentWriter | None = None
        self._reading: Iterator[Timed] | None = None
        self._place = 0
        self._place_taken = 0
        self._rest: Timed | None = None
        self._unsynced = 0
        self._synced_at = time.monotonic()
        self._unlock = weakref.finalize(self, os.close, lock)

    @classmethod
    def recover(cls, folder: str | Path, max_bytes: int = 1 << 30, now: float = 0.0) -> Self:
        """Open a folder, made if need be, with the tuples that an earlier run left in it.

        Those wait since `now`: clocks of different runs cannot be compared.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ShedFileError(f"{folder} cannot be a folder of shed tuples: {error}.") from error
        file = cls(folder, max_bytes, _lock(folder))
        file._now = now
        try:
            file._find()
        except BaseException as error:
            # Not when the error is forgotten, but now: the next try may follow at once.
            file._unlock()
            if isinstance(error, OSError):
                raise ShedFileError(
                    f"What an earlier run left in {folder} cannot be opened: {error}. Nothing of "
                    "it is lost: make room there, or mend the disk, and run again."
                ) from error
            raise
        return file

    def __len__(self) -> int:
        """How many tuples have not been taken."""
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
        return self.bytes + bytes_needed(batch, self._writer is None) <= self.max_bytes

    def append(self, since: float, batch: pa.RecordBatch) -> None:
        """Put tuples behind the others."""
        if not self.has_room(batch):
            more = bytes_needed(batch, self._writer is None)
            raise ShedSpaceError(
                f"{self.folder} holds {self.bytes:,} bytes of shed tuples; {batch.num_rows:,} more "
                f"tuples take {more:,} bytes, which would pass max_bytes={self.max_bytes:,}. Give "
                "the join more memory or the folder more room, or hold arrivals back with "
                'when_full="block".'
            )
        self.expect(batch.schema)
        with self._writing():
            if self._writer is None:
                self._open_segment(batch.schema)
            assert self._writer is not None
            before = self._writer.segment.bytes
            self._writer.append(since, batch)
            reached("shed.appended")
            self._unsynced += self._writer.segment.bytes - before
        self._tuples += batch.num_rows

    def sync_if_due(self) -> None:
        """As `sync`, if much was appended since the last one or a while has passed."""
        waited = time.monotonic() - self._synced_at
        if self._unsynced >= _SYNC_BYTES or (self._unsynced and waited >= _SYNC_SECONDS):
            self.sync()
        if self._writer is not None and self._is_large(self._writer.segment):
            self._seal()

    def sync(self) -> None:
        """Wait until what was appended is on the disk."""
        if self._writer is not None and self._unsynced:
            with self._writing():
                self._writer.sync()
        self._unsynced, self._synced_at = 0, time.monotonic()

    def take(self, count: int) -> list[Timed]:
        """The oldest `count` tuples that were not taken, or all."""
        taken: list[Timed] = []
        count = min(count, self._tuples)
        while count:
            piece = self._next_piece(count)
            taken.append(piece)
            rows = piece.batch.num_rows
            count -= rows
            self._place_taken += rows
            self._tuples -= rows
            self.taken += rows
        return taken

    def let_go(self, count: int) -> None:
        """The `count` tuples that were taken first are done: strike them off, durably."""
        assert count <= self.taken
        if not count:
            return
        self.taken -= count
        self._done += count
        finished = []
        while self._segments and self._done >= self._segments[0].tuples:
            segment = self._segments.popleft()
            self._done -= segment.tuples
            finished.append(segment)
            if self._writer is not None and self._writer.segment is segment:
                self._writer.abandon()
                self._writer, self._unsynced = None, 0
            if self._place == 0:
                self._reading, self._rest, self._place_taken = None, None, 0
            self._place = max(0, self._place - 1)
        with self._writing():
            self._write_cursor()
        reached("shed.struck")
        for segment in finished:
            segment.path.unlink()

    def close(self) -> None:
        """Close the files and let others have the folder; what was not let go of stays in it."""
        self._reading = None
        try:
            self._seal()
            if not self._segments:
                for name in ("cursor.json", "cursor.json.new"):
                    (self.folder / name).unlink(missing_ok=True)
        finally:
            self._unlock()

    def check(self) -> None:
        """Assert that counts, files and the bound agree."""
        held = sum(s.tuples for s in self._segments)
        assert self._tuples == held - self._done - self.taken
        before = sum(s.tuples for s in islice(self._segments, self._place))
        assert not self._segments or before + self._place_taken == self._done + self.taken
        assert [segment.path for segment in self._segments] == _segment_paths(self.folder)
        assert all(s.path.stat().st_size == s.bytes for s in self._segments)
        assert self.bytes <= self.max_bytes

    def _is_large(self, segment: Segment) -> bool:
        return segment.bytes >= min(_LARGEST_SEGMENT, self.max_bytes // 16)

    def _open_segment(self, schema: pa.Schema) -> None:
        segment = Segment(self.folder / f"shed-{next(self._numbers):08}.arrows")
        self._writer = SegmentWriter(segment, schema)
        self._segments.append(segment)
        reached("shed.opened")
        # From the first segment on, a cursor says which format the folder has.
        self._write_cursor()

    def _seal(self) -> None:
        """The newest segment is written to no more."""
        if self._writer is None:
            return
        with self._writing():
            self._writer.end()
            reached("shed.sealed")
            self._writer, self._unsynced = None, 0
            self._write_cursor()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Name what failed; half an append is cut off when the folder is opened again."""
        try:
            yield
        except OSError as error:
            if self._writer is not None:
                self._writer.abandon()
                self._writer, self._unsynced = None, 0
            if self._segments and not self._segments[-1].tuples:
                self._segments.pop()
            raise ShedSpaceError(
                f"Shed tuples cannot be written to {self.folder}: {error}. Make room there, or "
                "shed to another folder; what was shed before is safe and comes back in a new run."
            ) from error

    def _next_piece(self, count: int) -> Timed:
        """At most `count` tuples that wait since the same time, of the oldest that has any."""
        while self._place_taken == self._segments[self._place].tuples:
            self._place, self._place_taken = self._place + 1, 0
            self._reading = self._rest = None
        if self._reading is None:
            self._reading = self._segments[self._place].read(self._place_taken, self._now)
        if self._rest is None:
            self._rest = next(self._reading)
        since, batch = self._rest
        self._rest = None if batch.num_rows <= count else Timed(since, batch.slice(count))
        return Timed(since, batch.slice(0, count))

    def _write_cursor(self) -> None:
        written = self._writer.segment if self._writer is not None else None
        sealed = {s.number: (s.tuples, s.bytes) for s in self._segments if s is not written}
        first = self._segments[0].number if self._segments else self._next_number()
        content = json.dumps(
            {"format": _FORMAT, "segment": first, "done": self._done, "sealed": sealed}
        )
        temporary = self.folder / "cursor.json.new"
        with open(temporary, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        reached("shed.cursor")
        os.replace(temporary, self.folder / "cursor.json")
        _sync_folder(self.folder)

    def _next_number(self) -> int:
        number = next(self._numbers)
        self._numbers = count(number)
        return number

    def _find(self) -> None:
        """Count what an earlier run left, without the tuples that it let go of."""
        cursor = self._read_cursor()
        done = cursor.done
        paths = _segment_paths(self.folder)
        found = {segment.number: segment for segment in (Segment(p, old=True) for p in paths)}
        self._numbers = count(max([0, *found, cursor.segment - 1, *cursor.sealed]) + 1)
        for number in sorted(found.keys() | cursor.sealed.keys()):
            if number < cursor.segment:
                found[number].path.unlink()
            elif number in cursor.sealed:
                self._admit_sealed(number, found.get(number), *cursor.sealed[number])
            else:
                sure = self._admit_torn(found[number])
                if number == cursor.segment and sure is not None:
                    # Behind damage nobody knows which tuples were done: rather twice than never.
                    done = min(done, sure)
        if self._segments and self._segments[0].number == cursor.segment:
            self._done = self._place_taken = done
            if done > self._segments[0].tuples:
                raise ShedFileError(
                    f"{self._segments[0].path} has {self._segments[0].tuples:,} tuples, but "
                    f"{done:,} of it are done by cursor.json. Restore the files of "
                    f"{self.folder}."
                )
        self._tuples = sum(segment.tuples for segment in self._segments) - self._done
        if self._segments:
            self._write_cursor()

    def _admit_sealed(self, number: int, segment: Segment | None, tuples: int, size: int) -> None:
        """A segment that an earlier run had finished writing: it must be there, and whole."""
        name = f"shed-{number:08}.arrows"
        if segment is None or segment.path.stat().st_size != size:
            what = "is missing" if segment is None else "has not the size it was written with"
            raise ShedFileError(
                f"{self.folder / name} with {tuples:,} shed tuples {what}. Restore the file; or, "
                "to go on without its tuples, remove it and its entry in cursor.json."
            )
        segment.tuples, segment.bytes = tuples, size
        self.expect(segment.schema())
        self._segments.append(segment)

    def _admit_torn(self, segment: Segment) -> int | None:
        """The segment that was being written when a run ended without closing it.

        Only what nothing whole follows is cut off. Returns how many tuples there are before the
        first damage; None if there is no damage.
        """
        whole, size = segment.whole(), segment.path.stat().st_size
        if whole.schema is None and whole.has_batches:
            self._set_aside(segment)
            return None
        if whole.is_damaged:
            aside = segment.repair(whole)
            _sync_folder(self.folder)
            warnings.warn(
                f"{segment.path} is damaged in the middle: {whole.tuples:,} tuples before and "
                f"behind are whole and are joined, the others are not. The file as it was is kept "
                f"as {aside.name}: restore it from a copy, or remove it.",
                stacklevel=2,
            )
        elif whole.bytes < size:
            warnings.warn(
                f"{segment.path} ends in half an append: {size - whole.bytes:,} bytes after "
                f"{whole.tuples:,} whole tuples are cut off. Their tuples were in memory when the "
                "last run was killed.",
                stacklevel=2,
            )
            os.truncate(segment.path, whole.bytes)
        if whole.schema is None or not whole.tuples:
            segment.path.unlink()
            return None
        segment.tuples, segment.bytes = whole.tuples, segment.path.stat().st_size
        self.expect(whole.schema)
        self._segments.append(segment)
        if not whole.is_damaged:
            return None
        return whole.spans[0].tuples if whole.spans[0].first == whole.head else 0

    def _set_aside(self, segment: Segment) -> None:
        """Not even the schema of a segment can be read, but there are batches in it."""
        aside = segment.aside()
        os.rename(segment.path, aside)
        # Both names are there if they were names of one file before.
        segment.path.unlink(missing_ok=True)
        _sync_folder(self.folder)
        warnings.warn(
            f"{segment.path} is damaged at its beginning, and its tuples cannot be read. It is "
            f"kept as {aside.name}: restore it from a copy, or remove it.",
            stacklevel=2,
        )

    def _read_cursor(self) -> _Cursor:
        path = self.folder / "cursor.json"
        try:
            content: Any = json.loads(path.read_text())
            version = content.get("format", _FORMAT)
            if type(version) is int and version > _FORMAT:
                raise ShedFileError(
                    f"{path} has format {version}, and this semistream knows {_FORMAT}. Finish "
                    "the folder with the semistream that wrote it, or upgrade."
                )
            sealed = {int(n): (int(t), int(b)) for n, (t, b) in content["sealed"].items()}
            return _Cursor(int(content["segment"]), int(content["done"]), sealed)
        except FileNotFoundError:
            return _Cursor(0, 0, {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ShedFileError(
                f"{path} is broken: {error}. Without it all tuples of the segments come back, some "
                "for the second time: remove it if that may be."
            ) from error


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
