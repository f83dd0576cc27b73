"""Recent keys: the temporary buffer by which CINLJ finds out which keys are frequent.

INLJ keeps no tuples, so nothing tells how often a key comes. The buffer holds the codes of the
last look-ups for a while and is then emptied (Naeem et al. 2017, §3.3); a key that stands in
it several times is offered to the front stage when its page is read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.budget import Grant
from semistream.kernels import CANDIDATE
from semistream.parts.disk_buffer import Partition
from semistream.parts.front_stage import FrontStage

BYTES_PER_CODE = 40
"""A code, and what sorting and counting it takes."""


class RecentKeys:
    """Codes of the last look-ups; says how often each of the newest has come."""

    def __init__(
        self, capacity: int, chunk_rows: int, turn: int, front: FrontStage, grant: Grant
    ) -> None:
        """`capacity` codes; a turn of the front stage is `turn` look-ups."""
        grant.take((capacity + chunk_rows) * BYTES_PER_CODE)
        self._codes = np.zeros(capacity, np.int64)
        self._count = 0
        self._scale = max(1.0, turn / capacity)
        self._front = front
        self._frequency: NDArray[np.int64] = np.zeros(0, np.int64)
        self._arrived: NDArray[np.int64] = np.zeros(0, np.int64)

    def arrived(self, codes: NDArray[np.int64]) -> None:
        """These tuples are about to be looked up. O(n log n)."""
        recent = np.concatenate([self._codes[: self._count], codes])
        _, which, counts = np.unique(recent, return_inverse=True, return_counts=True)
        self._frequency = counts[which[self._count :]]
        self._arrived = codes
        newest = recent[-len(self._codes) :] if len(recent) <= len(self._codes) else codes[:0]
        self._codes[: len(newest)] = newest
        self._count = len(newest)

    @property
    def frequency(self) -> NDArray[np.float64]:
        """How often the key of each tuple that arrived last comes in a turn; 0 if it came once."""
        return np.where(self._frequency > 1, self._frequency * self._scale, 0.0)

    def offer(self, page: Partition, tuples: NDArray[np.int32], rows: NDArray[np.int32]) -> None:
        """These tuples have found these rows: keys seen more than once may be kept."""
        often = self._frequency[tuples] > 1
        if not often.any():
            return
        firsts, where = np.unique(self._arrived[tuples[often]], return_index=True)
        candidates = np.zeros(len(firsts), CANDIDATE)
        candidates["frequency"] = self._frequency[tuples[often]][where] * self._scale
        for place, code in enumerate(firsts.tolist()):
            same = np.flatnonzero(page.codes == code)
            candidates["first"][place], candidates["last"][place] = same[0], same[-1] + 1
        self._front.offer_keys(page, candidates)
