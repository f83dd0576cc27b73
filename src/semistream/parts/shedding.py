"""Load shedding: what to do with a stream that comes faster than it can be joined.

Naeem et al. 2017, §4, Algorithm 2, run before each iteration: w is what an iteration finishes,
and a stream buffer of more than 2w tuples is an overload. What is too much goes to disk, in a
shed file, and comes back when the load falls, before new arrivals. Nothing is lost.

| strategy | sheds |
| --- | --- |
| "keep" | the newest arrivals, before anything is done with them |
| "random" | arrivals chosen at random, so that what is joined is a uniform sample |
| "considering" | the longest-waiting tuples: many partitions were read and none was theirs |

"considering" has a price: a tuple passes through the stream table before it is shed. So at most a
quarter of the queue goes in one iteration, and at most 2w tuples. What is still too much is shed as
with "keep", so that the stream buffer stays bounded however fast the stream is. Since the oldest
tuples are shed, the tuple to look up next is not the oldest then: it stands at a share of the queue
from the newest side.

| paper | here |
| --- | --- |
| w_B | the larger of what the last iteration finished and the room in the stream table |
| SB_1 | the timed stream, and the misses that a front stage holds |
| end of Q | the oldest side of the arrival queue |

Tuples that came back do not count towards an overload: they would be shed again at once. They
stay in the file until they are joined and handed out: "let go of". That is known without marking
any of them, since waiting tuples know when they entered: once the longest-waiting one entered
after them, all that had come back by then are done.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from semistream.budget import parse_memory
from semistream.errors import OptionError
from semistream.metrics import Recorder
from semistream.parts.shed_file import ShedFile
from semistream.parts.timed_stream import MOST_PENDING, TimedStream
from semistream.parts.waiting import WaitingTuples
from semistream.relation.storage import local_path

__all__ = ["STRATEGIES", "ShedFile", "Shedder", "Shedding"]

STRATEGIES: Final = ("keep", "random", "considering")
_FEWEST_AT_ONCE = 16
_WRAP: Final = 0xFFFFFFFF
_CONSIDERED_SHARE = 4
"""One in so many waiting tuples may be shed in an iteration."""
_FEWEST_LET_GO = 4096
"""Tuples that came back are let go of so many at a time, or when they are the last."""


@dataclass(frozen=True)
class Shedding:
    """How to shed load, and where to.

    `folder` is for one run at a time; what an earlier run left in it is joined by the next, also
    what had come back to that run and was not joined when it was closed or killed. Some thousand
    tuples that it had joined may then be joined again: nothing is lost, but a run that does not
    end by itself can give rows twice. A crash of the machine itself takes at most what was shed
    in the last tenth of a second.

    When its segments would pass `max_bytes`, `when_full` decides: "error" stops the run with
    all that was shed safe on disk; "block" sheds no more until tuples have come back, and
    arrivals stay with the producer instead. `look_up_position` is used by "considering" and
    `seed` by "random".
    """

    strategy: str
    folder: str | Path
    look_up_position: float = 0.15
    seed: int = 0
    max_bytes: int | str = 1 << 30
    when_full: str = "error"

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.strategy not in STRATEGIES:
            raise OptionError(
                f"strategy={self.strategy!r} is not known. Use one of: {', '.join(STRATEGIES)}."
            )
        local_path(self.folder, "folder")
        if not (_is_number(self.look_up_position) and 0.0 <= self.look_up_position <= 1.0):
            raise OptionError(
                f"look_up_position={self.look_up_position!r} must be from 0 (the newest side of "
                "the queue) to 1 (the oldest)."
            )
        if type(self.seed) is not int or self.seed < 0:
            raise OptionError(f"seed={self.seed!r} must be a whole number of at least 0.")
        if self.when_full not in ("error", "block"):
            raise OptionError(f'when_full={self.when_full!r} is not known. Use "error" or "block".')
        parse_memory(self.max_bytes, "max_bytes")

    @property
    def considers(self) -> bool:
        """Whether tuples are shed from an arrival queue, after they were considered."""
        return self.strategy == "considering"

    def open(self, now: float) -> ShedFile:
        """The shed file, with what an earlier run left in it."""
        return ShedFile.recover(self.folder, parse_memory(self.max_bytes, "max_bytes"), now)


class Entered(NamedTuple):
    """How many tuples that came back had been read by a time, in the recorder's microseconds."""

    tuples: int
    micros: int


class Shedder:
    """Sheds and brings back, before each iteration."""

    def __init__(
        self,
        shedding: Shedding,
        file: ShedFile,
        stream: TimedStream,
        recorder: Recorder,
        waiting: WaitingTuples | None,
        room: Callable[[], int],
        held: Callable[[], int],
    ) -> None:
        """`room` is what the stream table can take, `held` what a front stage has not given.

        Tuples that an earlier run left in the file have arrived and are shed.
        """
        self._shedding = shedding
        self._file = file
        self._stream = stream
        self._recorder = recorder
        self._waiting = waiting
        self._room = room
        self._held = held
        self._chunk_rows = stream.most_rows
        self._random = np.random.default_rng(shedding.seed)
        self._finished = recorder.joined + recorder.unmatched - recorder.front_hits
        self._entered: Entered | None = None
        recorder.arrived += len(file)
        recorder.shed += len(file)
        stream.coming_back = lambda: len(file) > 0

    def adjust(self) -> None:
        """Algorithm 2: shed when the stream buffer is too full, else bring tuples back."""
        stream = self._stream
        stream.arrive()
        w = self._expected()
        size = stream.size + self._held()
        excess = min(size - stream.returned - 2 * w, stream.pending)
        overload = excess > 0
        if overload:
            overload = self._shed(excess, w) > 0
        else:
            self._bring_back(2 * w - size)
        self._file.sync_if_due()
        if self._waiting is not None and self._shedding.strategy == "considering":
            position = self._shedding.look_up_position
            self._waiting.look_up_position = position if overload else None
        stream.most_rows = min(self._chunk_rows, max(2 * w, _FEWEST_AT_ONCE))
        stream.most_pending = 2 * w + MOST_PENDING
        stream.fresh = 0

    def sync(self) -> None:
        """The join will rest: what was shed should be on the disk meanwhile."""
        self._file.sync()

    def joined(self, oldest: int | None) -> int:
        """How many tuples that came back are joined; `oldest` is when the oldest waiting entered.

        None: nothing waits. They can be let go of once their rows are handed out.
        """
        if self._entered is None:
            # What came back is read first and in order: the rest stands before the algorithm.
            ahead = self._stream.size - self._stream.pending + self._held()
            entered = self._file.taken - ahead
            if entered >= _FEWEST_LET_GO or (entered > 0 and not len(self._file)):
                self._entered = Entered(entered, self._recorder.micros())
        if self._entered is None:
            return 0
        if oldest is not None and not 0 < (oldest - self._entered.micros) & _WRAP < _WRAP // 2:
            return 0
        tuples, self._entered = self._entered.tuples, None
        return tuples

    def let_go(self, count: int) -> None:
        """So many tuples that came back are joined, and their rows handed out."""
        self._file.let_go(count)

    def end(self) -> None:
        """Everything is joined and handed out."""
        self._file.let_go(self._file.taken)

    def check(self) -> None:
        """Assert that the file holds what was shed and is not back."""
        self._file.check()
        assert len(self._file) == self._recorder.shed - self._recorder.returned

    def _expected(self) -> int:
        """w: what the next iteration can take: what the last one finished, or more room."""
        recorder, before = self._recorder, self._finished
        # Hits of a front stage take no slot: counted in, they would call shed tuples back too soon.
        self._finished = recorder.joined + recorder.unmatched - recorder.front_hits
        return max(self._finished - before, self._room(), 1)

    def _shed(self, count: int, w: int) -> int:
        """Let `count` tuples go to the file, or as many as it has room for."""
        if self._shedding.strategy != "considering" or self._waiting is None:
            return self._stream.shed_newest(self._chosen(count), self._keep)
        now = self._recorder.clock()
        considered = min(count, 2 * w, max(1, len(self._waiting) // _CONSIDERED_SHARE))
        gone = self._waiting.shed(considered, lambda batch: self._keep(now, batch))
        if gone == considered < count:
            gone += self._stream.shed_newest(np.ones(count - gone, np.bool_), self._keep)
        return gone

    def _chosen(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which of the newest pending tuples go: all, or some of those that are new."""
        if self._shedding.strategy == "keep":
            return np.ones(count, np.bool_)
        # An arrival is decided on once, unless older ones must go as well.
        some = max(count, min(self._stream.fresh, self._stream.pending))
        chosen = np.zeros(some, np.bool_)
        chosen[self._random.choice(some, count, replace=False)] = True
        return chosen

    def _keep(self, since: float, batch: pa.RecordBatch) -> bool:
        """Write tuples to the file; False when they must stay where they are."""
        if self._shedding.when_full == "block" and not self._file.has_room(batch):
            return False
        self._file.append(since, batch)
        self._recorder.shed += batch.num_rows
        return True

    def _bring_back(self, count: int) -> None:
        if count > 0 and len(self._file):
            back = self._file.take(count)
            self._recorder.returned += sum(piece.batch.num_rows for piece in back)
            self._stream.come_back(back)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
