"""Front stage: master rows that the stream keeps asking for, in front of any semi-stream join.

Naeem et al. 2017, §3: a cache of single master rows, not of pages (H_R). Arriving tuples are
looked up here first; a hit goes out at once and never waits, a miss goes on to the algorithm
behind. The disk phase of that algorithm tells which keys are frequent.

    stream buffer (SB_1) ─► front stage ──hit──► output
                              │ ▲ miss
                        (SB_2)▼ └── frequent keys, from the partitions it reads
                            algorithm

It is a stage before the algorithm, and any algorithm can have it.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream import kernels
from semistream.arrow_arrays import to_arrow
from semistream.kernels import CANDIDATE
from semistream.metrics import Recorder
from semistream.parts.admission import (
    IDLE,
    TICKS_PER_TURN,
    AdmissionRule,
    Floats,
    asked_within,
    per_turn,
)
from semistream.parts.disk_buffer import Partition, row_ranges
from semistream.parts.join_shape import JoinShape
from semistream.parts.kept_rows import BYTES_PER_ROW, KeptRows, Slots
from semistream.parts.look_up_set import LookUpSet
from semistream.parts.output import Output
from semistream.parts.rebalancer import Rebalancer
from semistream.parts.row_arena import Chosen, LaidOut
from semistream.parts.stream_buffer import Arrivals

_CANDIDATES = 1024
RESTING_TURNS = 7
"""A front stage that answers next to nothing looks at the stream in one turn of eight."""
_BYTES_PER_CODE = 48
"""A code with its frequency, and what sorting both by place takes."""


class FrontStage:
    """Answers stream tuples from the rows it keeps, and learns which rows to keep."""

    def __init__(
        self,
        kept: KeptRows,
        rule: AdmissionRule,
        shape: JoinShape,
        output: Output,
        recorder: Recorder,
        partitions: int,
        average_row: float,
    ) -> None:
        """A turn is as many partition reads as R has partitions."""
        self._average_row = average_row
        self.kept = kept
        self.rule = rule
        self._shape = shape
        self._output = output
        self._recorder = recorder
        self._reads_per_tick = max(1, partitions // TICKS_PER_TURN)
        self.next_tick = recorder.partitions_read + self._reads_per_tick
        """The number of partitions read at which time passes next."""
        self._ticks = 0
        self._evicted = 0
        self._victims: Slots = np.empty(0, np.int32)
        self._candidates = np.zeros(_CANDIDATES, CANDIDATE)
        self._crowded = False
        self._looked_up = self._looked_up_before = self._looked_up_at_tick = 0
        self._hits_before = recorder.front_hits
        self.rebalancer: Rebalancer | None = None
        self._rests = 0
        """Turns for which nobody is asked, since hardly any tuple is answered."""

    def restart(self) -> None:
        """Another stream begins: what is kept stays, the counters start from what they are now."""
        self.next_tick = self._recorder.partitions_read + self._reads_per_tick
        self._looked_up = self._looked_up_at_tick = 0
        self._looked_up_before, self._hits_before = 0, self._recorder.front_hits

    @property
    def room_for_codes(self) -> int:
        """How many codes may be held here for a while, until their rows take the room.

        Rows are of average size; what a code takes meanwhile is counted with its row.
        """
        row = self._average_row + BYTES_PER_ROW
        return int(self._free_rows * row / (row + _BYTES_PER_CODE))

    def offer(self, partition: Partition, rows: NDArray[np.int32]) -> None:
        """A partition was probed with these pairs' rows: its frequent keys may come in."""
        self.pass_time()
        if self._rests:
            return
        start, stop, found = partition.start, partition.stop, self._candidates
        while count := kernels.frequent_codes(
            rows, partition.codes, start, stop, self.rule.threshold, found
        ):
            start = int(found["last"][count - 1])
            self._consider(partition, found[:count])
            if not self._free_rows:
                return

    def offer_rows(self, partition: Partition, asked: NDArray[np.int32], turns: float) -> None:
        """Rows of a partition were asked for so often, each the first of its key, in some turns.

        What is considered is 0 in `asked` afterwards.
        """
        self.pass_time()
        if self._rests:
            return
        least = asked_within(turns, self.rule.threshold)
        start, stop, found = partition.start, partition.stop, self._candidates
        while count := kernels.frequent_rows(asked, partition.codes, start, stop, least, found):
            asked[found["first"][:count]] = 0
            found["frequency"][:count] = per_turn(found["frequency"][:count], turns)
            self._consider(partition, found[:count])
            if not self._free_rows:
                return

    def offer_found(self, look_ups: LookUpSet) -> None:
        """Rows were looked up for waiting tuples: those of frequent keys may come in."""
        self.pass_time()
        candidates = look_ups.candidates(np.inf if self._rests else self.rule.threshold)
        if len(candidates):
            self._consider(look_ups, candidates)

    def offer_keys(self, partition: Partition, candidates: NDArray[np.void]) -> None:
        """Keys of a partition, with frequencies that someone else has counted, may come in."""
        self.pass_time()
        enough = candidates["frequency"] >= self.rule.threshold
        whole = (candidates["first"] >= partition.start) & (candidates["last"] <= partition.stop)
        if (enough & whole).any():
            self._consider(partition, candidates[enough & whole])

    def pin(self, partition: Partition) -> None:
        """Keep the whole keys of a partition, as far as there is room."""
        codes = partition.codes[partition.start : partition.stop]
        firsts = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1)) + partition.start
        candidates = np.zeros(len(firsts), CANDIDATE)
        candidates["first"] = firsts
        candidates["last"] = np.append(firsts[1:], partition.stop)
        self.keep(partition, candidates, partition.codes_of(candidates))

    def keep(
        self,
        source: Partition | LookUpSet,
        candidates: NDArray[np.void],
        codes: NDArray[np.int64],
    ) -> None:
        """Keep these keys, none of which is kept yet, as far as there is room."""
        counts = candidates["last"] - candidates["first"]
        few = counts <= self._most_rows
        candidates, codes, counts = candidates[few], codes[few], counts[few]
        room = int(np.searchsorted(np.cumsum(counts), self._free_rows, side="right"))
        if room:
            self._keep(source, candidates[:room], codes[:room], counts[:room])

    def check(self) -> None:
        """Assert the invariants of the kept rows."""
        self.kept.check()

    def answer(self, arrivals: Arrivals) -> Generator[Arrivals, None, Arrivals]:
        """Stage the hits among the arrivals; the misses are returned."""
        self.rule.arrived(arrivals.codes)
        if self._rests:
            self._looked_up += len(arrivals.codes)
            yield arrivals.between(0, 0)
            return arrivals.keyed()
        output, count = self._output, len(arrivals.codes)
        pairs, nothing = output.pairs, arrivals.between(0, 0).keyed()
        missed = np.ones(count, np.bool_)
        cursor = np.zeros(1, np.int64)
        yield nothing._replace(keyless=arrivals.keyless)
        while cursor[0] < count:
            found = self.kept.probe(arrivals.codes, cursor, missed, pairs)
            if not self._shape.codec.exact:
                missed[pairs.tuples[:found]] = True
            for begin, end in output.cuts(found, partial(self.kept.sizes, pairs.rows[:found])):
                self._join(arrivals, pairs.tuples[begin:end], pairs.rows[begin:end], missed)
                yield nothing
        self._recorder.front_probes += count
        self._recorder.front_chunks += 1
        self._looked_up += count
        hits = count - int(np.count_nonzero(missed))
        self._recorder.front_hits += hits
        self._recorder.uncached += round(hits * self.kept.uncached_share)
        self._recorder.joined += hits
        self._recorder.processing.add(0.0, hits)
        return arrivals.only(missed) if hits else arrivals.keyed()

    def _join(
        self,
        arrivals: Arrivals,
        tuples: NDArray[np.int32],
        slots: Slots,
        missed: NDArray[np.bool_],
    ) -> None:
        for here, master in self.kept.heap.pieces(slots):
            mine = tuples if here is None else tuples[here]
            stream = arrivals.batch.take(to_arrow(mine))
            stream, master, mine = self._shape.true_pairs(stream, master, mine)
            missed[mine] = False
            self._output.put(stream, master)

    def _consider(self, source: Partition | LookUpSet, candidates: NDArray[np.void]) -> None:
        """Let the worthiest of the candidates in that are not kept yet."""
        self._recorder.offers += 1
        counts = candidates["last"] - candidates["first"]
        codes = source.codes_of(candidates)
        codes.flags.writeable = False
        new = self.kept.lacks(codes) & (counts <= self._most_rows)
        candidates, codes, counts = candidates[new], codes[new], counts[new]
        # The average size will do to choose; what is really taken is measured in `_keep`.
        sizes = counts * (self._average_row + BYTES_PER_ROW)
        worth = self.rule.worth(codes, candidates["frequency"].copy(), sizes)
        chosen = np.argsort(-worth, kind="stable")
        chosen = chosen[worth[chosen] > 0]
        chosen = chosen[: self._room_for(worth[chosen], counts[chosen])]
        if len(chosen):
            self._keep(source, candidates[chosen], codes[chosen], counts[chosen])

    def _room_for(self, worth: Floats, counts: NDArray[np.int32]) -> int:
        """Make room for the first of some keys, the worthiest first; returns for how many."""
        kept = self.kept
        needed = np.cumsum(counts)
        fits = int(np.searchsorted(needed, self._free_rows, side="right"))
        self._crowded = self._crowded or fits < len(worth)
        victims = self._least(len(worth) - fits)
        least = self.rule.worth(
            kept.codes(victims), kept.frequency(victims), kept.key_bytes(victims)
        )
        better = self.rule.prefers(worth[fits : fits + len(victims)], least)
        pushed = len(better) if better.all() else int(np.argmin(better))
        if pushed:
            self._evicted += int(np.count_nonzero(kept.frequency(victims[:pushed]) > 0))
            kept.evict(victims[:pushed])
            self._victims = self._victims[pushed:]
            # A rule that lets too many in learns it at once, not at the end of the tick.
            if self._evicted > len(kept) // 8:
                self.rule.adapt(True, self._evicted, len(kept))
                self._evicted = 0
        return int(np.searchsorted(needed, self._free_rows, side="right"))

    @property
    def _free_rows(self) -> int:
        """Rows of average size that still have room, in slots and in bytes."""
        return min(self.kept.free, int(self.kept.heap.free_bytes / self._average_row))

    def _keep(
        self,
        source: Partition | LookUpSet,
        candidates: NDArray[np.void],
        codes: NDArray[np.int64],
        counts: NDArray[np.int32],
    ) -> None:
        """Copy the rows of some keys from where they were found, as far as their bytes fit."""
        rows = row_ranges(candidates["first"], counts)
        chosen: Chosen | LaidOut | pa.RecordBatch
        if isinstance(source, Partition):
            chosen = self.kept.chosen(source.batch.select(self.kept.columns), rows)
        else:
            chosen = source.laid_out(rows)
        self.kept.insert(codes, counts, candidates["frequency"], chosen)

    def pass_time(self) -> None:
        """Partitions have been read: a share of a turn may be over."""
        if self._recorder.partitions_read >= self.next_tick:
            self.next_tick = self._recorder.partitions_read + self._reads_per_tick
            # While nothing arrives no key is asked for, which says nothing about the keys.
            if self._looked_up > self._looked_up_at_tick:
                self._looked_up_at_tick = self._looked_up
                self._tick()

    def _least(self, count: int) -> Slots:
        """At most `count` of the least frequent keys; their order may be a tick old."""
        if len(self._victims) < count:
            firsts = self.kept.keys()
            order = np.argsort(self.kept.frequency(firsts), kind="stable")
            self._victims = firsts[order]
        return self._victims[:count]

    def _tick(self) -> None:
        kept = self.kept
        if self._rests:
            self._ticks += 1
            if self._ticks % TICKS_PER_TURN == 0:
                self._rests -= 1
                self._hit_ratio(turned=True)
            return
        # Keys that nobody asks for any more count as room: the hot set has moved.
        idle = int(np.count_nonzero(kept.frequency(kept.keys()) == 0))
        full = self._free_rows + idle <= int(IDLE * kept.capacity)
        self.rule.adapt(full, self._evicted, len(kept))
        self._evicted = 0
        self._victims = self._victims[:0]
        self._ticks += 1
        turned = self._ticks % TICKS_PER_TURN == 0
        if turned:
            kept.turn()
            firsts = kept.keys()
            leaving = self.rule.leaving(kept.frequency(firsts), kept.key_bytes(firsts))
            if leaving.any():
                kept.evict(firsts[leaving])
        if self.rebalancer is not None:
            hit_ratio = self._hit_ratio(turned)
            self.rebalancer.tick(hit_ratio, self._crowded, turned)
            if turned and hit_ratio is not None and self.rebalancer.is_idle(hit_ratio):
                self._rests = RESTING_TURNS
        self._crowded = False

    def _hit_ratio(self, turned: bool) -> float | None:
        """The share of arrivals answered here since the last turn; None if nothing arrived."""
        looked_up = self._looked_up - self._looked_up_before
        hits = self._recorder.front_hits - self._hits_before
        if turned:
            self._looked_up_before, self._hits_before = self._looked_up, self._recorder.front_hits
        return hits / looked_up if looked_up else None

    @property
    def _most_rows(self) -> int:
        """A key with more rows is not kept: it would crowd out the others."""
        return min(len(self._output.pairs.rows), max(1, self.kept.capacity // 8))
