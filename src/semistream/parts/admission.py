"""Admission rules: which keys the front stage keeps.

All frequencies are counted in one unit, so that a key outside can be compared with one inside:
tuples per *turn*, a turn being as many partition reads as R has partitions. Outside, that is
the f of the papers, the waiting tuples that a master row matches when its partition is read;
inside, it is the hits since the last turn, which is what would be waiting. Where partitions are
read after different times, f is what would have come within a turn (`per_turn`).

| rule | a key enters | a key leaves |
| --- | --- | --- |
| `PaperRule` | when f reaches a threshold, which moves | as the least frequent, for another |
| `BalanceRule` | when its waiting tuples take more than its rows | when they would no longer |
| `TinyLfuRule` | when a sketch counts it more often than the least | as the least, for another |
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from semistream import kernels
from semistream.budget import Grant

ADMISSIONS = ("paper", "balance", "tinylfu")
"""The rules by name."""

TICKS_PER_TURN = 8
"""How often in a turn a rule adapts."""
IDLE = 1 / 50
"""A front stage is full if no more of its rows are free, or kept for keys that do not come."""

_DOUBT = 0.1
"""Turns that are added to a time, so that chance in a short one does not count for much."""
_MOST_PER_TURN = 1 << 30
"""Frequencies may be kept in four bytes."""

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


def per_turn(asked: NDArray[Any], turns: Floats | float) -> Floats:
    """The frequency of keys that were `asked` for so often within some turns, or a part of one.

    The time began with a tuple, so the first one says nothing about how often others come. And
    what comes twice in a very short time need not go on so.
    """
    frequency = np.minimum((asked - 1) / (turns + _DOUBT) + 1, _MOST_PER_TURN)
    return np.where(asked > 0, frequency, 0.0)


def asked_within(turns: float, frequency: float) -> float:
    """How often a key of this frequency is asked for within some turns: the reverse."""
    return max(1.0, (frequency - 1) * (turns + _DOUBT) + 1)


class AdmissionRule(Protocol):
    """Decides who enters and who leaves; the front stage does the work."""

    threshold: float
    """The least f with which a key is looked at."""

    def arrived(self, codes: Codes) -> None:
        """These codes have come with the stream."""

    def worth(self, codes: Codes, frequency: Floats, row_bytes: Floats) -> Floats:
        """How much the keys deserve a place; those at 0 or below do not enter."""

    def prefers(self, worth: Floats, least: Floats) -> NDArray[np.bool_]:
        """Whether keys of this worth may push out keys of that worth, one by one."""

    def leaving(self, frequency: Floats, row_bytes: Floats) -> NDArray[np.bool_]:
        """At the end of a turn: which of the kept keys go."""

    def adapt(self, full: bool, evicted: int, kept: int) -> None:
        """A share of a turn is over: what the front stage looks like."""

    def go_on_from(self, before: AdmissionRule) -> None:
        """The same stream was seen by another rule before: use what it knows, if anything."""


class PaperRule:
    """A threshold on f, the least frequent is replaced (Naeem et al. 2017, §3.2.1).

    The threshold falls while there is room and rises when a tenth of the keys is replaced
    within a turn.
    """

    CHURN, RISE = 0.10, 1.25
    """The share of keys that may be replaced in a turn; by how much the threshold rises else."""

    def __init__(self, threshold: float = 2.0, moves: bool = True) -> None:
        """Start with a threshold; 2 is the least that shows a repetition."""
        self.threshold = threshold
        self._moves = moves

    def arrived(self, codes: Codes) -> None:
        """Nothing is counted before the disk phase."""

    def worth(self, codes: Codes, frequency: Floats, row_bytes: Floats) -> Floats:
        """The frequency itself."""
        return frequency

    def prefers(self, worth: Floats, least: Floats) -> NDArray[np.bool_]:
        """Always: a key that reaches the threshold replaces the least frequent one."""
        return np.ones(len(worth), np.bool_)

    def leaving(self, frequency: Floats, row_bytes: Floats) -> NDArray[np.bool_]:
        """None: a key stays until it is replaced."""
        return np.zeros(len(frequency), np.bool_)

    def adapt(self, full: bool, evicted: int, kept: int) -> None:
        """Move the threshold, unless it is held."""
        if not self._moves:
            return
        if evicted > kept * self.CHURN / TICKS_PER_TURN:
            self.threshold *= self.RISE
        elif not full:
            self.threshold = max(1.0, self.threshold / self.RISE)

    def go_on_from(self, before: AdmissionRule) -> None:
        """Take over the threshold, unless it is held."""
        if self._moves and isinstance(before, PaperRule):
            self.threshold = before.threshold


class PinnedRule:
    """What was put in at the start stays, and nothing else comes in (Optimised X-HYBRIDJOIN)."""

    threshold = float("inf")

    def arrived(self, codes: Codes) -> None:
        """Nothing is counted."""

    def worth(self, codes: Codes, frequency: Floats, row_bytes: Floats) -> Floats:
        """No key deserves a place."""
        return np.zeros(len(codes))

    def prefers(self, worth: Floats, least: Floats) -> NDArray[np.bool_]:
        """Never."""
        return np.zeros(len(worth), np.bool_)

    def leaving(self, frequency: Floats, row_bytes: Floats) -> NDArray[np.bool_]:
        """None."""
        return np.zeros(len(frequency), np.bool_)

    def adapt(self, full: bool, evicted: int, kept: int) -> None:
        """Nothing moves."""

    def go_on_from(self, before: AdmissionRule) -> None:
        """Nothing is known beyond the kept keys."""


class BalanceRule:
    """A key is kept exactly when its waiting tuples would take more memory than its rows.

    In the steady state f tuples of a key wait; that costs f × the bytes of a waiting tuple.
    Kept in the front stage the key costs the bytes of its master rows. There is no threshold to
    choose, and the memory divides itself: for a uniform stream no key qualifies.
    """

    def __init__(self, tuple_bytes: float, overhead_bytes: float) -> None:
        """Bytes per waiting tuple, and per kept master row beyond the row itself."""
        self._tuple_bytes = tuple_bytes
        self._overhead = overhead_bytes
        self.threshold = max(1.0, overhead_bytes / tuple_bytes)

    def arrived(self, codes: Codes) -> None:
        """Nothing is counted before the disk phase."""

    def worth(self, codes: Codes, frequency: Floats, row_bytes: Floats) -> Floats:
        """Bytes saved by keeping the key."""
        return frequency * self._tuple_bytes - row_bytes

    def prefers(self, worth: Floats, least: Floats) -> NDArray[np.bool_]:
        """Only where a key saves more than the one it pushes out."""
        return worth > least

    def leaving(self, frequency: Floats, row_bytes: Floats) -> NDArray[np.bool_]:
        """Those whose tuples would wait more cheaply."""
        return frequency * self._tuple_bytes < row_bytes

    def adapt(self, full: bool, evicted: int, kept: int) -> None:
        """Nothing moves."""

    def go_on_from(self, before: AdmissionRule) -> None:
        """Nothing is known beyond the kept keys."""


class TinyLfuRule:
    """TinyLFU: a count-min sketch of the stream, halved from time to time, says who is frequent.

    Einziger, Friedman, Manes: *TinyLFU: A Highly Efficient Cache Admission Policy*, 2017. The
    sketch sees every arriving code, so that a key is compared by the same measure whether it
    is inside or outside.
    """

    def __init__(self, keys: int, grant: Grant) -> None:
        """A sketch for about `keys` kept keys: two counters or more each, in each of four rows."""
        self._bits = max(6, (2 * max(keys, 1)).bit_length())
        grant.take(self.bytes_for(keys))
        self._sketch = np.zeros((4, 1 << self._bits), np.uint8)
        self._counted = 0
        self._halve_at = 16 << self._bits
        # Every key that is asked for is looked at: the sketch knows how frequent it is.
        self.threshold = 1.0

    @staticmethod
    def bytes_for(keys: int) -> int:
        """What the sketch takes."""
        return 4 << max(6, (2 * max(keys, 1)).bit_length())

    def arrived(self, codes: Codes) -> None:
        """Count the codes; halve all counts when enough have come."""
        kernels.count_codes(self._sketch, self._bits, codes)
        self._counted += len(codes)
        if self._counted >= self._halve_at:
            np.right_shift(self._sketch, 1, out=self._sketch)
            self._counted //= 2

    def worth(self, codes: Codes, frequency: Floats, row_bytes: Floats) -> Floats:
        """The sketch's estimate."""
        estimate = np.empty(len(codes), np.float64)
        kernels.estimate_codes(self._sketch, self._bits, codes, estimate)
        return estimate

    def prefers(self, worth: Floats, least: Floats) -> NDArray[np.bool_]:
        """Only a more frequent key may push one out."""
        return worth > least

    def leaving(self, frequency: Floats, row_bytes: Floats) -> NDArray[np.bool_]:
        """None: a key stays until a more frequent one comes."""
        return np.zeros(len(frequency), np.bool_)

    def adapt(self, full: bool, evicted: int, kept: int) -> None:
        """Nothing moves."""

    def go_on_from(self, before: AdmissionRule) -> None:
        """Take over the counts, if they are as many."""
        if isinstance(before, TinyLfuRule) and before._bits == self._bits:
            self._sketch, self._counted = before._sketch, before._counted
