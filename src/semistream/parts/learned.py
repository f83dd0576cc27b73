"""What a front stage has learned, on its way from one engine to the next.

An engine ends with its stream's schema, its sizes or its version of the master. What it has
learned is worth more than that: which keys the stream keeps asking for. The rows kept for them
can be used on as they are where the next engine has the same rows; all others are read anew.

    front stage ─► Legacy: rows of keys that have not changed ─► front stage
                           codes of all others ─► sweep ─────────▲
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.parts.admission import AdmissionRule
from semistream.parts.kept_rows import KeptRows, Slots
from semistream.relation import MasterTable, same_rows

__all__ = ["Learned", "Legacy"]

Codes = NDArray[np.int64]


class Learned(NamedTuple):
    """Codes that the stream keeps asking for, the most frequent first, and how often."""

    codes: Codes
    frequency: NDArray[np.float32]

    @classmethod
    def nothing(cls) -> Self:
        """No codes."""
        return cls(np.empty(0, np.int64), np.empty(0, np.float32))

    @classmethod
    def of(cls, kept: KeptRows, firsts: Slots | None = None, most: int | None = None) -> Self:
        """The `most` frequent of some kept keys, or of all; none that nobody asks for any more."""
        firsts = kept.keys() if firsts is None else firsts
        frequency = kept.frequency(firsts).astype(np.float32)
        order = np.argsort(-frequency, kind="stable")[:most]
        order = order[frequency[order] > 0]
        return cls(kept.codes(firsts[order]), frequency[order])

    def chosen(self, which: NDArray[np.bool_ | np.intp] | slice) -> Learned:
        """Some of them, by a mask, by their places, or a slice."""
        return Learned(self.codes[which], self.frequency[which])


@dataclass
class Legacy:
    """What an engine leaves to the next one of the same join: rows, or only codes.

    It holds memory of the engine that has left it, so it is given to one engine, at once.
    """

    learned: Learned
    """Codes whose rows are to be read anew."""
    kept: KeptRows | None = None
    """Rows of other codes, in `master`."""
    master: MasterTable | None = None
    rule: AdmissionRule | None = None

    def rows_for(self, master: MasterTable, schema: pa.Schema, most_rows: int) -> KeptRows | None:
        """The rows that are certainly the same in this master; the other codes are `learned` then.

        None if there are none of this schema that can become so many.
        """
        kept, before = self.kept, self.master
        self.kept = self.master = None
        if kept is None or before is None:
            return None
        if not kept.suits(schema, most_rows):
            self.learned = Learned.of(kept)
            return None
        firsts = kept.keys()
        changed = firsts[~same_rows(before, master, kept.codes(firsts))]
        self.learned = Learned.of(kept, changed)
        if len(changed):
            kept.evict(changed)
        return kept
