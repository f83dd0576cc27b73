"""Shed segment: one file of shed tuples, an Arrow IPC stream that any Arrow tool can read.

Each record batch carries when its tuples began to wait, and a checksum of that and of its own bytes
in the file. So a damaged batch is noticed before it is joined, and half an append after a crash is
told apart from a whole one, and from damage with whole batches behind it.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import xxhash

from semistream.crash_points import reached
from semistream.errors import ShedFileError
from semistream.parts.timed_stream import Timed
from semistream.relation.page_rules import schema_of_bytes

_SINCE: Final = b"semistream.since"
_CHECKSUM: Final = b"semistream.body"
_OLD_CHECKSUM: Final = b"semistream.xxh3"
"""In files of earlier releases: of the batch as Arrow writes it a second time."""
_BLANK: Final = "-" * 16
"""In place of the checksum until the bytes are known."""
_PREFIX: Final = struct.Struct("<ii")
_END: Final = _PREFIX.pack(-1, 0)
_MOST_METADATA: Final = 1 << 24
_MOST_ROWS = 4096
"""Tuples per record batch: what a reader holds at once."""
_SLACK = 320
"""Bytes of a message that Arrow does not tell beforehand: its metadata, the end of the stream."""


class Span(NamedTuple):
    """Bytes of a file, from first to before stop, and how many tuples they hold."""

    first: int
    stop: int
    tuples: int


class Whole(NamedTuple):
    """What of a segment can be read: its schema (None: not even that) and its whole batches."""

    schema: pa.Schema | None
    head: int
    """Bytes of the schema."""
    spans: list[Span]
    """Runs of whole batches. Between two of them something is damaged."""
    ends: bool
    """Whether the end mark follows the last one."""
    has_batches: bool
    """Whether there is anything like a batch, be it whole or not."""

    @property
    def tuples(self) -> int:
        """All tuples in whole batches."""
        return sum(span.tuples for span in self.spans)

    @property
    def bytes(self) -> int:
        """Where the last whole batch ends, with the end mark."""
        end = self.spans[-1].stop if self.spans else self.head
        return end + (len(_END) if self.ends else 0)

    @property
    def is_damaged(self) -> bool:
        """Whether whole batches lie behind something that is not."""
        first = self.spans[0].first if self.spans else self.head
        return len(self.spans) > 1 or first > self.head


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
            with pa.OSFile(str(self.path)) as source:
                schema = pa.ipc.read_message(source)
                while seen < self.tuples:
                    batch, since = _checked(schema, pa.ipc.read_message(source))
                    seen += batch.num_rows
                    ahead = max(0, skip - seen + batch.num_rows)
                    if ahead < batch.num_rows:
                        yield Timed(now if self.old else since, batch.slice(ahead))
        except _UNREADABLE as error:
            raise self._damaged(seen) from error

    def whole(self) -> Whole:
        """What can be read of the file, also behind damage."""
        data = self.path.read_bytes()
        try:
            source = pa.BufferReader(data)
            head = pa.ipc.read_message(source)
            schema, at = pa.ipc.read_schema(head), source.tell()
        except _UNREADABLE:
            found = _next_batch(data, None, 0)
            return Whole(None, 0, [], False, found is not None)
        spans: list[Span] = []
        begin = at
        while (found := _next_batch(data, head, at)) is not None:
            if spans and spans[-1].stop == found.first:
                spans[-1] = Span(spans[-1].first, found.stop, spans[-1].tuples + found.tuples)
            else:
                spans.append(found)
            at = found.stop
        return Whole(schema, begin, spans, data[at : at + len(_END)] == _END, bool(spans))

    def repair(self, whole: Whole) -> Path:
        """Keep only the whole batches; the file as it was stays aside. Returns where that is."""
        aside = self.aside()
        data = self.path.read_bytes()
        mended = self.path.with_name(f"{self.path.name}.new")
        with open(mended, "wb") as file:
            file.write(data[: whole.head])
            for span in whole.spans:
                file.write(data[span.first : span.stop])
            file.flush()
            os.fsync(file.fileno())
        # The mended file has a name first, so that a crash in between leaves the old one in place.
        reached("shed.mended")
        if not aside.exists():
            os.link(self.path, aside)
        reached("shed.aside")
        os.replace(mended, self.path)
        return aside

    def aside(self) -> Path:
        """A name for the file as it is, which no other has; the one that it has, if it has one."""
        stem = f"damaged-{self.number:08}"
        names = (f"{stem}.arrows", *(f"{stem}-{n}.arrows" for n in range(2, 1000)))
        paths = map(self.path.with_name, names)
        return next(path for path in paths if not path.exists() or path.samefile(self.path))

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
        self._made = io.BytesIO()
        self._writer = pa.ipc.new_stream(self._made, schema)

    def append(self, since: float, batch: pa.RecordBatch) -> None:
        """Tuples that wait since the same time; the operating system has them afterwards."""
        for part in parts(batch):
            metadata = {_SINCE: repr(since), _CHECKSUM: _BLANK}
            self._writer.write_batch(part, custom_metadata=metadata)
            self._sink.write(_summed(since, self._taken()))
        self._sink.flush()
        self.segment.bytes = self._sink.tell()
        self.segment.tuples += batch.num_rows

    def _taken(self) -> bytearray:
        """What Arrow has written since the last time."""
        made = bytearray(self._made.getvalue())
        self._made.seek(0)
        self._made.truncate()
        return made

    def sync(self) -> None:
        """Wait until it is on the disk."""
        os.fsync(self._sink.fileno())

    def end(self) -> None:
        """The segment is whole."""
        self._writer.close()
        self._sink.write(self._taken())
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


_UNREADABLE: Final = (pa.ArrowException, OSError, EOFError, ValueError, StopIteration, _DamageError)


def _summed(since: float, written: bytearray) -> bytearray:
    """The message of a batch with its checksum: of the bytes that go to the file.

    The schema may stand before it.
    """
    source = pa.BufferReader(bytes(written))
    message = pa.ipc.read_message(source)
    if message.type == "schema":
        message = pa.ipc.read_message(source)
    at = written.rindex(_BLANK.encode(), 0, len(written) - message.body.size)
    written[at : at + len(_BLANK)] = _digest(since, message.body).encode()
    return written


def _next_batch(data: bytes, head: pa.Message | None, at: int) -> Span | None:
    """The first whole batch from byte `at` on. Without `head`, anything that looks like one."""
    while (at := data.find(_END[:4], at)) >= 0:
        if at + _PREFIX.size > len(data):
            return None
        _, size = _PREFIX.unpack_from(data, at)
        if 0 < size <= _MOST_METADATA:
            with contextlib.suppress(*_UNREADABLE):
                source = pa.BufferReader(memoryview(data)[at:])
                message = pa.ipc.read_message(source)
                if message.type == "record batch":
                    rows = 0 if head is None else _checked(head, message)[0].num_rows
                    return Span(at, at + source.tell(), rows)
        at += 1
    return None


def _checked(head: pa.Message, message: pa.Message) -> tuple[pa.RecordBatch, float]:
    """The batch of a message, and since when its tuples wait; `head` has the schema."""
    if message.type != "record batch":
        raise _DamageError
    # Only a stream's reader gives the metadata of a message.
    stream = pa.BufferOutputStream()
    for one in (head, message):
        one.serialize_to(stream)
    with pa.ipc.open_stream(stream.getvalue()) as reader:
        batch, metadata = reader.read_next_batch_with_custom_metadata()
    found: dict[bytes, Any] = {} if metadata is None else dict(metadata)
    try:
        since = float(found[_SINCE])
    except (KeyError, ValueError):
        raise _DamageError from None
    if _CHECKSUM in found:
        fine = found[_CHECKSUM] == _digest(since, message.body).encode()
    else:
        fine = found.get(_OLD_CHECKSUM) == _digest(since, batch.serialize()).encode()
    if not fine:
        raise _DamageError
    pa.ipc.read_record_batch(message, schema_of_bytes(batch.schema)).validate(full=True)
    return batch, since


def _digest(since: float, data: pa.Buffer) -> str:
    digest = xxhash.xxh3_64(repr(since).encode())
    digest.update(data)
    return digest.hexdigest()
