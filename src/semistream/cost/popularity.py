"""Popularity: what share of a stream falls on which partitions of R.

Where frequent keys lie in front, the shares follow from Zipf's law. Where they are scattered,
chance decides which partitions hold them: the most frequent keys are placed by a seeded draw, and
the many others are spread evenly over all partitions.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semistream.cost.skew import Skew
from semistream.cost.zipf_sums import rank_classes, zipf_share, zipf_shares
from semistream.parts.admission import IDLE, TICKS_PER_TURN, PaperRule
from semistream.relation import MasterTable

Floats = NDArray[np.float64]

_PLACED = 1 << 14
_SEED = 20
_MOST_CLASSES = 2048
_ROUNDS = 40
_LEAST_MISSED = 1e-12


class Shares(NamedTuple):
    """Partitions in classes: `number` of them have the share `of_one` of the stream each."""

    of_one: Floats
    number: Floats

    @property
    def total(self) -> float:
        """The share of the stream on all of them."""
        return float(self.of_one @ self.number)


def key_count(master: MasterTable) -> int:
    """How many keys a master table has, about."""
    return max(round(master.row_count / master.rows_per_key), 1)


class Popularity:
    """How a stream is spread over the keys and pages of a master table."""

    def __init__(self, master: MasterTable, skew: Skew) -> None:
        """For one master and one skew."""
        self.keys = skew.keys or key_count(master)
        self.exponent = skew.exponent
        by_frequency = "frequency" if master.layout == "given" else "scattered"
        self.scattered = (skew.order or by_frequency) == "scattered"
        self._rows = np.concatenate([[0], np.cumsum(master.pages.rows, dtype=np.float64)])
        self._keys_per_row = self.keys / max(master.row_count, 1)
        self.shares = lru_cache(maxsize=64)(self._shares)

    def top(self, keys: float) -> float:
        """The share of the stream on the most frequent keys."""
        return zipf_share(keys, self.keys, self.exponent)

    def noticed(self, keys: float, recent: float, turn: float, chunk: float) -> tuple[float, float]:
        """The share of the stream on `keys` keys that CINLJ keeps, and on those it considers.

        It lets in a key that comes twice within a buffer of `recent` missed tuples, and pushes out
        one that did not come in the last `turn` of them. So a key of share p enters in proportion
        to p (1 − e^(−p · buffer)) and leaves in proportion to e^(−p · turn). How much of the time
        it is kept follows from these two. A key is considered that comes a second time, in the
        buffer or in the same `chunk`.
        """
        edges = rank_classes(0, self.keys, 4096)
        count = np.diff(edges)
        shares = zipf_shares(edges.astype(np.float64), self.keys, self.exponent)
        each = np.diff(shares) / count
        hits, kept = 0.0, np.zeros(len(each))
        missed = 1.0
        for _ in range(_ROUNDS):
            # On average the buffer is half full, and only misses fill it.
            enters = each * -np.expm1(-each * recent / 2 / missed)
            leaves = np.exp(-each * turn / missed)
            kept = _kept(enters, leaves, count, min(keys, self.keys))
            hits = min((hits + float(kept * count @ each)) / 2, 1.0)
            missed = max(1 - hits, _LEAST_MISSED)
        again = -np.expm1(-each * (recent + chunk) / 2 / missed)
        return hits, float((1 - kept) * again * each @ count)

    def considered(self, kept: float, turn: float) -> float:
        """How many keys a front stage that keeps the `kept` most frequent considers in a turn.

        Others come often within `turn` tuples by chance. The paper's rule raises its threshold
        until they hardly ever replace more keys in a tick than it allows, and lowers it while kept
        keys that nobody asks for leave room.
        """
        top = min(round(kept), self.keys)
        if not top or top == self.keys:
            return 0.0
        outside, expected = self._expected(top, self.keys, turn)
        inside, of_kept = self._expected(0, top, turn)
        # A key counts as asked for that came in this turn or in the last one.
        idle = float(np.exp(-1.5 * of_kept) @ inside)
        most = PaperRule.CHURN * top
        # How many are idle changes from tick to tick.
        falling = min(1.0, idle / (IDLE * top))
        threshold, most_per_tick = 1.0, most / TICKS_PER_TURN
        while True:
            count = float(_at_least(np.ceil(threshold), expected) @ outside)
            per_tick = count / TICKS_PER_TURN
            if per_tick + 2 * per_tick**0.5 <= most_per_tick:
                return falling * (most + idle / 2) + (1 - falling) * count
            threshold *= PaperRule.RISE

    def _expected(self, first: int, last: int, tuples: float) -> tuple[Floats, Floats]:
        """Ranks in classes: how many they are, and how many of so many tuples each has."""
        edges = rank_classes(first, last, 512)
        count = np.diff(edges).astype(np.float64)
        shares = zipf_shares(edges.astype(np.float64), self.keys, self.exponent)
        return count, np.diff(shares) / count * tuples

    def distinct(self, top: int, missed: float, wait: float) -> float:
        """Different codes per tuple, among the `missed` share that misses the `top` keys.

        A code waits until `wait` more tuples have come; its tuples among them are settled with it.
        """
        if top >= self.keys:
            return 1.0
        edges = rank_classes(top, self.keys, 512)
        count = np.diff(edges)
        shares = zipf_shares(edges.astype(np.float64), self.keys, self.exponent)
        each = np.diff(shares) / count / missed
        return float((each / (1 + each * wait)) @ count)

    def first(self, partitions: int, partition_pages: int) -> float:
        """The share of the stream on the first partitions."""
        return float(self.leading(partitions, partition_pages).sum())

    def leading(self, partitions: int, partition_pages: int) -> Floats:
        """The shares of the stream on each of the first partitions."""
        if not partitions:
            return np.zeros(0)
        return self._by_partition(partition_pages, 0)[:partitions]

    def _shares(self, partition_pages: int, top: int = 0, skipped: int = 0) -> Shares:
        """The partitions behind the first `skipped`, for a stream without its `top` keys."""
        shares = np.sort(self._by_partition(partition_pages, top)[skipped:])
        if len(shares) <= _MOST_CLASSES:
            return Shares(shares, np.ones(len(shares)))
        # The heaviest have a class each; neighbours among the others differ little.
        cuts = len(shares) - np.unique(np.geomspace(1, len(shares), _MOST_CLASSES).astype(int))
        begins = np.unique(np.append(cuts, 0))
        count = np.diff(np.append(begins, len(shares))).astype(np.float64)
        return Shares(np.add.reduceat(shares, begins) / count, count)

    def _by_partition(self, partition_pages: int, top: int) -> Floats:
        pages = len(self._rows) - 1
        edges = self._rows[np.append(np.arange(0, pages, partition_pages), pages)]
        if self.scattered:
            return self._placed(edges, partition_pages, top)
        ranks = np.maximum(edges * self._keys_per_row, top)
        return np.diff(zipf_shares(ranks, self.keys, self.exponent))

    @cached_property
    def _heads(self) -> tuple[NDArray[np.int64], Floats]:
        """Pages on which the most frequent keys are taken to lie, and their shares."""
        placed = min(self.keys, _PLACED)
        ranks = np.arange(placed + 1, dtype=np.float64)
        shares = np.diff(zipf_shares(ranks, self.keys, self.exponent))
        rows = np.random.default_rng(_SEED).integers(0, int(self._rows[-1]), placed)
        return np.searchsorted(self._rows, rows, side="right") - 1, shares

    def _placed(self, edges: Floats, partition_pages: int, top: int) -> Floats:
        pages, heads = self._heads
        homes = pages[top:] // partition_pages
        shares = np.bincount(homes, weights=heads[top:], minlength=len(edges) - 1)
        rest = 1 - zipf_share(max(len(heads), top), self.keys, self.exponent)
        even: Floats = shares + rest * np.diff(edges) / edges[-1]
        return even


def _at_least(number: float, expected: Floats) -> Floats:
    """How likely so many, or more, come of keys of which some are expected.

    Of Poisson's law, by the cube root of Wilson and Hilferty: within 0.02 of it, whatever the size.

    >>> _at_least(3, np.array([0.5, 3.0, 1e9])).round(2).tolist()
    [0.02, 0.58, 1.0]
    """
    z = 3 * number**0.5 * (np.cbrt(expected / number) - 1 + 1 / (9 * number))
    z = np.clip(z, -8.0, 8.0)
    likely: Floats = 1 / (1 + np.exp(-1.5976 * z - 0.07056 * z**3))
    return likely


def _kept(enters: Floats, leaves: Floats, count: Floats, keys: float) -> Floats:
    """The share of the time that each key is kept, such that `keys` are kept at any time."""
    low, high = -60.0, 60.0
    kept: Floats = enters
    for _ in range(_ROUNDS):
        pressure = (low + high) / 2
        kept = enters / (enters + np.exp(pressure) * leaves)
        low, high = (pressure, high) if kept @ count > keys else (low, pressure)
    return kept
