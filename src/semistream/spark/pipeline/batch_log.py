"""The batch log: what each batch of a pipeline takes in, and its outcome.

    checkpoint/semistream/batches/
      00000012.json         the record: written before the batch does anything
      00000012.done.json    the outcome: written after all its outputs

After a crash Spark runs its last micro-batch again. If the batch has an outcome, nothing is left to
do. If not, its record says which version of the master and which waiting tuples it ran with, and it
runs with the same again. Batches have numbers of their own, since a pipeline also runs batches of
waiting tuples, of which Spark knows nothing. Only the last batch can be unfinished.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from semistream.crash_points import reached
from semistream.errors import CheckpointError
from semistream.relation.storage import Location, Storage, checksum_bytes, inside, storage_at

__all__ = ["BatchLog", "BatchRecord", "Counts", "Outcome", "logged_outcomes", "pinned_versions"]

_FORMAT: Final = 1
_KEPT: Final = 1000
"""How many batches stay in the log. Only the last is needed; the others are for people to read."""
_NAME: Final = re.compile(r"(\d{8,})\.(done\.)?json")
_IDENTITY: Final = "batches/pipeline.json"


@dataclass(frozen=True)
class BatchRecord:
    """What a batch takes in: decided once, and followed whenever the batch runs."""

    number: int
    stream_batch: int | None
    """Spark's number of the micro-batch; None for a batch of waiting tuples only."""
    at: float
    """When it began, in seconds since 1970; decides which waiting tuples are due."""
    version: int
    """The master's version; of several masters, the sum of theirs."""
    retried: tuple[str, ...] = ()
    """Entries of the retry queue that it takes in."""
    returned: tuple[str, ...] = ()
    """Entries of the deferred queue that it takes in."""
    capacity: int | None = None
    """How many stream tuples it may join; more are deferred. None for no limit."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The version of each look-up's master, by name; empty if there is one master."""
    master_as_of: float | None = None
    """Up to when the master has all changes of its source, as seconds since 1970; of several, the
    one furthest behind. None if none follows a source."""


@dataclass(frozen=True)
class Counts:
    """Where the stream tuples of a batch came from and where they went."""

    source: int = 0
    retried: int = 0
    """Came from the retry queue."""
    returned: int = 0
    """Came from the deferred queue."""
    joined: int = 0
    unmatched: int = 0
    """Without a master row, wherever they then went. In totals a tuple counts each time it was
    looked for."""
    deferred: int = 0
    rejected: int = 0
    expired: int = 0
    """Those of `unmatched` whose time in the retry queue was over."""
    outputs: int = 0
    """Rows for the sink: a tuple that matches three master rows gives three."""

    @property
    def arrived(self) -> int:
        """All tuples of the batch."""
        return self.source + self.retried + self.returned

    def plus(self, other: Counts) -> Counts:
        """The sums of both."""
        mine, theirs = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class Outcome:
    """A batch that is done: all its outputs are written."""

    number: int
    stream_batch: int | None
    at: float
    version: int
    counts: Counts
    totals: Counts
    """Those of all batches of the pipeline so far."""
    seconds: float
    """How long it ran; the last time, if it ran several times."""
    capacity: int | None
    """How many tuples the next batch may join, as learned so far."""
    waiting_retry: int
    """Stream tuples in the retry queue."""
    waiting_deferred: int
    engine: Mapping[str, Any] = field(default_factory=dict)
    """What the tasks of the join measured; empty if that is not known."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """As in the record."""
    master_as_of: float | None = None
    """As in the record."""

    @property
    def ended_unmatched(self) -> int:
        """Tuples of all batches that have ended unmatched; none of them waits."""
        # Every tuple that went into the retry queue has come out of it again, or is there.
        return self.totals.unmatched - self.totals.retried - self.waiting_retry


class BatchLog:
    """Records and outcomes in a folder, which one pipeline uses at a time."""

    def __init__(self, location: Location) -> None:
        """Open the log in a folder, or begin one."""
        self._storage = storage_at(location)
        self._ready()
        self._remove_unfinished()
        numbers = sorted(number for number, _ in _logged(self._storage))
        self.last_record = self._record(numbers[-1]) if numbers else None
        done = sorted(number for number, is_done in _logged(self._storage) if is_done)
        self.last_outcome = self._outcome(done[-1]) if done else None
        of_spark = (record.stream_batch for record in self._from_newest())
        self._newest = next((number for number in of_spark if number is not None), -1)
        """Spark's number of the last micro-batch that has begun."""

    @property
    def unfinished(self) -> BatchRecord | None:
        """The batch that has begun and has no outcome."""
        done = -1 if self.last_outcome is None else self.last_outcome.number
        record = self.last_record
        return record if record is not None and record.number > done else None

    @property
    def next_number(self) -> int:
        """The number of the next new batch."""
        return 0 if self.last_record is None else self.last_record.number + 1

    def identity(self) -> str:
        """A name for this pipeline that no other has; it never changes."""
        if not self._has(_IDENTITY):
            made = str(uuid4())
            data = json.dumps({"format": _FORMAT, "id": made}).encode()
            self._storage.publish(_IDENTITY, data, made)
        with _whole(self._storage, _IDENTITY):
            return str(_read(self._storage, _IDENTITY)["id"])

    def of_stream_batch(self, stream_batch: int) -> BatchRecord | None:
        """The record of Spark's micro-batch; None if it has never begun.

        O(1) for a new one; else the log is searched, which happens after a restart only.
        """
        if stream_batch > self._newest:
            return None
        for record in self._from_newest():
            if record.stream_batch is not None and record.stream_batch <= stream_batch:
                return record if record.stream_batch == stream_batch else None
        return None

    def is_done(self, record: BatchRecord) -> bool:
        """Whether all outputs of the batch are written."""
        return self.last_outcome is not None and record.number <= self.last_outcome.number

    def begin(self, record: BatchRecord) -> None:
        """Publish the record of a new batch."""
        self._publish(_record_name(record.number), _fields(record))
        reached("log.begun")
        self.last_record = record
        if record.stream_batch is not None:
            self._newest = record.stream_batch

    def finish(self, outcome: Outcome) -> None:
        """Publish the outcome, after which the batch never runs again."""
        self._publish(_outcome_name(outcome.number), _fields(outcome))
        reached("log.finished")
        self.last_outcome = outcome
        old = outcome.number - _KEPT
        self._storage.remove([_record_name(old), _outcome_name(old)])
        reached("log.forgotten")

    def withdraw(self, record: BatchRecord) -> str:
        """Forget the record of the unfinished batch, which is then decided anew; where a copy is.

        Nobody may have handed on anything of the batch.
        """
        name, kept = _record_name(record.number), f"batches/withdrawn.{uuid4().hex}.json"
        self._storage.write(kept, self._storage.read(name))
        stem = name.removesuffix("json").partition("/")[2]
        files = [e.name for e in self._storage.entries("batches") if e.name.startswith(stem)]
        self._storage.remove(f"batches/{file}" for file in files)
        if self._has(name):
            raise CheckpointError(
                f"{self._storage.shown(name)} cannot be removed. Look at the rights of its folder."
            )
        return self._storage.shown(kept)

    def outcomes(self, after: int) -> Iterator[Outcome]:
        """The outcomes of batches after the one of this number, in order."""
        for number in sorted(n for n, is_done in _logged(self._storage) if is_done):
            if number > after:
                yield self._outcome(number)

    def records(self) -> list[BatchRecord]:
        """The records that are kept, in order."""
        return [self._record(n) for n in sorted({n for n, _ in _logged(self._storage)})]

    def _from_newest(self) -> Iterator[BatchRecord]:
        """The records that are kept, the newest first; each is read when it is asked for."""
        numbers = {number for number, _ in _logged(self._storage)}
        return map(self._record, sorted(numbers, reverse=True))

    def _record(self, number: int) -> BatchRecord:
        found = _read(self._storage, _record_name(number))
        with _whole(self._storage, _record_name(number)):
            lists = {name: tuple(found[name]) for name in ("retried", "returned")}
            versions = dict(found.get("versions", {}))
            record = BatchRecord(**{**found, **lists, "versions": versions})
            if record.number != number:
                raise ValueError(f"it is of batch {record.number!r}")
            numbers = [record.version, record.stream_batch or 0, record.capacity or 0]
            numbers += record.versions.values()
            names = (*record.retried, *record.returned)
            if not all(isinstance(n, int) for n in numbers) or not all(map(_is_text, names)):
                raise TypeError("some are of another kind")
            return record

    def _outcome(self, number: int) -> Outcome:
        return _outcome(self._storage, number)

    def _publish(self, name: str, content: Mapping[str, Any]) -> None:
        writer = uuid4().hex
        # The checksum is in a field that earlier releases know and pass over: they read this too.
        signed = {"format": _FORMAT, "writer": f"{writer}.{_checksum(content)}", **content}
        data = json.dumps(signed).encode()
        try:
            self._storage.publish(name, data, writer)
        except FileExistsError as error:
            raise CheckpointError(
                f"{self._storage.shown(name)} was written by another process: two pipelines run "
                "with one checkpoint. Stop one of them, or give it a checkpoint of its own."
            ) from error

    def _has(self, name: str) -> bool:
        return self._storage.sizes([name])[0] is not None

    def _ready(self) -> None:
        path = self._storage.path
        if isinstance(path, Path):
            (path / "batches").mkdir(parents=True, exist_ok=True)

    def _remove_unfinished(self) -> None:
        """Remove what a killed process left behind; no other process writes here."""
        entries = self._storage.entries("batches")
        stray = [e.name for e in entries if e.name.endswith(".claim") or e.name.startswith(".tmp")]
        if not isinstance(self._storage.path, Path):
            # On an object store a put may have been cut off; local files appear whole.
            names = [e.name for e in entries if _NAME.fullmatch(e.name)]
            stray += [n for n in names if _is_torn(self._storage, f"batches/{n}")]
        self._storage.remove(f"batches/{name}" for name in stray)


def logged_outcomes(
    checkpoint: Location, after: int = -1, only_if_next: bool = False
) -> Iterator[Outcome]:
    """The outcomes in the log of a checkpoint, of batches after that number; it is only read.

    A pipeline may go on meanwhile, and remove the oldest: they are passed over. A log has two
    thousand files; with `only_if_next` they are not listed unless the next batch is there.
    """
    storage = storage_at(inside(checkpoint, "semistream"))
    if only_if_next and storage.sizes([_outcome_name(after + 1)]) == [None]:
        return
    for number in sorted(n for n, is_done in _logged(storage) if is_done and n > after):
        if storage.sizes([_outcome_name(number)]) != [None]:
            yield _outcome(storage, number)


def pinned_versions(checkpoint: Location) -> set[int]:
    """The versions of the master that a pipeline may still need, for `MasterTable.vacuum`.

    These are the versions of the unfinished batch and of the last one that is done. The next batch
    takes the newest version, which is never vacuumed anyway. If the pipeline has several masters,
    these are the versions of all of them.
    """
    storage = storage_at(inside(checkpoint, "semistream"))
    logged = list(_logged(storage))
    done = sorted(number for number, is_done in logged if is_done)[-1:]
    begun = {number for number, _ in logged if not done or number >= done[0]}
    pinned: set[int] = set()
    for name in map(_record_name, begun):
        with _whole(storage, name):
            found = _read(storage, name)
            pinned.update(map(int, dict(found.get("versions", {})).values() or [found["version"]]))
    return pinned


def _logged(storage: Storage) -> Iterator[tuple[int, bool]]:
    """The numbers of records and of outcomes; True for an outcome."""
    for entry in storage.entries("batches"):
        found = _NAME.fullmatch(entry.name)
        if found is not None:
            yield int(found[1]), found[2] is not None


def _outcome(storage: Storage, number: int) -> Outcome:
    found = _read(storage, _outcome_name(number))
    with _whole(storage, _outcome_name(number)):
        counts = {name: Counts(**found[name]) for name in ("counts", "totals")}
        return Outcome(**{**found, **counts})


def _read(storage: Storage, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(storage.read(name))
        version = found.pop("format")
    except (
        FileNotFoundError,
        ValueError,
        KeyError,
        AttributeError,
        TypeError,
        RecursionError,
    ) as error:
        raise CheckpointError(
            f"{storage.shown(name)} is missing or broken ({error!r}). Restore the checkpoint from "
            "a backup, or begin with a new one."
        ) from error
    if version != _FORMAT:
        raise CheckpointError(
            f"{storage.shown(name)} has format {version}, but this semistream knows {_FORMAT}. "
            "Go on with the semistream that wrote it, or begin with a new checkpoint."
        )
    # Files of earlier releases have no checksum.
    _, _, told = str(found.pop("writer", "")).partition(".")
    with _whole(storage, name):
        if told and told != _checksum(found):
            raise ValueError("its checksum does not fit")
    return found


def _checksum(content: Mapping[str, Any]) -> str:
    """Of the fields of a record or an outcome, in whichever order they are."""
    return checksum_bytes(json.dumps(content, sort_keys=True).encode())


def _fields(logged: BatchRecord | Outcome) -> dict[str, Any]:
    """What is written. What does not apply is left out, so that earlier releases read the rest."""
    found = asdict(replace(logged, versions=dict(logged.versions)))
    if not logged.versions:
        del found["versions"]
    if logged.master_as_of is None:
        del found["master_as_of"]
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str)


@contextmanager
def _whole(storage: Storage, name: str) -> Iterator[None]:
    """Say clearly that a file lacks fields, or has others than this semistream knows."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"{storage.shown(name)} does not have the fields of this semistream ({error}): it is "
            "broken, or a newer one wrote it. Upgrade, or restore the checkpoint from a backup."
        ) from error


def _is_torn(storage: Storage, name: str) -> bool:
    """Whether a put was cut off: what is there is no JSON, and its writer never found it whole.

    Anything else stays, be it of another format or damaged since: it is for people to look at.
    """
    try:
        json.loads(storage.read(name))
    except FileNotFoundError:
        return False
    except ValueError:
        return not storage.is_sealed(name)
    return False


def _record_name(number: int) -> str:
    return f"batches/{number:08d}.json"


def _outcome_name(number: int) -> str:
    return f"batches/{number:08d}.done.json"
