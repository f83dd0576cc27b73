"""Shed segment: one file of shed tuples, an Arrow IPC stream that any Arrow tool can read.

Each record batch carries when its tuples began to wait and a checksum of both, so that a
damaged batch is noticed before it is joined, and half an append after a crash is told apart
from a whole one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import xxhash

from semistream.errors import ShedFileError
from semistream.parts.timed_stream import Timed

_SINCE: Final = b"semistream.since"
_CHECKSUM: Final = b"semistream.xxh3"
_MOST_ROWS = 4096
"""Tuples per record batch: what a reader holds at once."""
_SLACK = 320
"""Bytes of a message that Arrow does not tell beforehand: its metadata, the end of the stream."""


class Whole(NamedTuple):
    """What of a segment can be read: its schema (None: not even that), tuples and bytes."""

    schema: pa.Schema | None
    tuples: int
    bytes: int


class Segment:
    """One file: how many tuples and bytes it has, and whether an earlier run wrote it."""

    def __init__(self, path: Path, tuples: int = 0, size: int = 0, old: bool = False) -> None:
        """Nothing is opened."""
        self.path = path
        self.tuples = tuples
        self.bytes = size
        self.old = old

    @property
    def number(self) -> int:
        """Its number, from the file's name; the first is one."""
        return int(self.path.name[5:13])

    def schema(self) -> pa.Schema:
        """The schema of its tuples."""
        try:
            with pa.OSFile(str(self.path)) as source, pa.ipc.open_stream(source) as reader:
                return reader.schema
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(0) from error

    def read(self, skip: int, now: float) -> Iterator[Timed]:
        """The tuples behind the first `skip`, also those that are appended while it is read.

        Tuples of an earlier run wait since `now`.
        """
        seen = 0
        try:
            with pa.OSFile(str(self.path)) as source, pa.ipc.open_stream(source) as reader:
                while seen < self.tuples:
                    batch, since = _checked(reader)
                    seen += batch.num_rows
                    ahead = max(0, skip - seen + batch.num_rows)
                    if ahead < batch.num_rows:
                        yield Timed(now if self.old else since, batch.slice(ahead))
        except (pa.ArrowException, OSError, StopIteration, _DamageError) as error:
            raise self._damaged(seen) from error

    def whole(self) -> Whole:
        """As far as the file can be read, from its beginning."""
        schema, tuples, size = None, 0, 0
        with pa.OSFile(str(self.path)) as source:
            try:
                reader = pa.ipc.open_stream(source)
                schema, size = reader.schema, source.tell()
                while True:
                    tuples += _checked(reader)[0].num_rows
                    size = source.tell()
            except StopIteration:
                size = source.tell()
            except (pa.ArrowException, OSError, _DamageError):
                pass
        return Whole(schema, tuples, size)

    def _damaged(self, seen: int) -> ShedFileError:
        return ShedFileError(
            f"{self.path} is damaged after {seen:,} of its {self.tuples:,} tuples. Restore the "
            "file; or, to go on without the others, remove it and its entry in cursor.json."
        )


class SegmentWriter:
    """Writes the newest segment."""

    def __init__(self, segment: Segment, schema: pa.Schema) -> None:
        """The file must not exist yet."""
        self.segment = segment
        self._sink = open(segment.path, "xb")  # noqa: SIM115 (it stays open until `close`)
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def append(self, since: float, batch: pa.RecordBatch) -> None:
        """Tuples that wait since the same time; the operating system has them afterwards."""
        for part in parts(batch):
            metadata = {_SINCE: repr(since), _CHECKSUM: _digest(since, part)}
            self._writer.write_batch(part, custom_metadata=metadata)
        self._sink.flush()
        self.segment.bytes = self._sink.tell()
        self.segment.tuples += batch.num_rows

    def sync(self) -> None:
        """Wait until it is on the disk."""
        os.fsync(self._sink.fileno())

    def end(self) -> None:
        """The segment is whole."""
        self._writer.close()
        self._sink.flush()
        self.sync()
        self.segment.bytes = self._sink.tell()
        self._sink.close()

    def abandon(self) -> None:
        """Write no more; half an append is cut off, if the disk still does that."""
        with contextlib.suppress(OSError):
            self._sink.close()
        with contextlib.suppress(OSError):
            os.truncate(self.segment.path, self.segment.bytes)


def bytes_needed(batch: pa.RecordBatch, schema_too: bool) -> int:
    """The most that appending the batch adds to a file."""
    size = sum(pa.ipc.get_record_batch_size(part) + _SLACK for part in parts(batch))
    return int(size + (batch.schema.serialize().size + _SLACK if schema_too else 0))


def parts(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch in pieces that a reader can hold."""
    return [batch.slice(at, _MOST_ROWS) for at in range(0, batch.num_rows, _MOST_ROWS)]


class _DamageError(Exception):
    """A batch is not what was written."""


def _checked(reader: pa.RecordBatchStreamReader) -> tuple[pa.RecordBatch, float]:
    batch, metadata = reader.read_next_batch_with_custom_metadata()
    found: dict[bytes, Any] = {} if metadata is None else dict(metadata)
    try:
        since = float(found[_SINCE])
    except (KeyError, ValueError):
        raise _DamageError from None
    if found.get(_CHECKSUM) != _digest(since, batch).encode():
        raise _DamageError
    return batch, since


def _digest(since: float, batch: pa.RecordBatch) -> str:
    digest = xxhash.xxh3_64(repr(since).encode())
    digest.update(batch.serialize())
    return digest.hexdigest()
