"""Similar texts: a filter in compiled code finds candidates, RapidFuzz measures them.

    waiting texts ─► prefixes, in order ─┐
                                         ├─► candidates ─► Levenshtein distance ─► pairs
    a block's texts ─► prefixes ─────────┘

The measure is 1 − d / length of the longer text, with d the Levenshtein distance in characters
(Unicode code points). `kernels.similar` says why the filter loses nothing. Texts are compared as
they are: upper and lower case differ, and so do the two ways to write an accented letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.errors import OptionError
from semistream.kernels.similar import (
    COUNTERS,
    LENGTHS,
    candidates,
    count_grams,
    measure,
    most_edits,
    prefix_sizes,
    prefixes,
)
from semistream.parts.output import Pairs
from semistream.row_bytes import Sizes
from semistream.scanning.conditions import Similar
from semistream.scanning.intervals import ends_and_data
from semistream.scanning.sizing import Needs

__all__ = ["Similarity", "Texts"]

_CANDIDATES: Final = 512
_CHARACTERS: Final = 16384
"""Of all candidates that are measured at a time: they become Python's strings."""
_TOKENS: Final = 8192
"""Of the rows whose prefixes are made at a time."""
_TOKEN_BYTES: Final = 48
_LONG_GRAMS: Final = 0.8
"""From such a similarity on, grams have three characters: they are rarer than those of two."""

Distances = Callable[[list[str], list[str], int], NDArray[np.int32]]


def _distances() -> Distances:
    """The function that measures pairs of texts; RapidFuzz is loaded when it is first needed."""
    try:
        from rapidfuzz.distance import Levenshtein
        from rapidfuzz.process import cpdist
    except ImportError as error:
        raise OptionError(
            "ss.similar needs RapidFuzz, which is not installed: pip install 'semistream[similar]'."
        ) from error

    def measured(left: list[str], right: list[str], most: int) -> NDArray[np.int32]:
        found: NDArray[np.int32] = cpdist(
            left, right, scorer=Levenshtein.distance, score_cutoff=most, dtype=np.int32
        )
        return found

    return measured


class Texts(NamedTuple):
    """A column of texts as it lies in memory; nulls are among them."""

    column: pa.Array

    @property
    def arrays(self) -> list[pa.Array]:
        """What they take in memory."""
        return [self.column]


class _Measured(NamedTuple):
    """Texts with what the filter needs to know of them."""

    ends: NDArray[np.int64]
    data: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    """In characters; -1 for a null."""
    characters: NDArray[np.uint64]
    starts: NDArray[np.int64]
    """Where the prefix of each would begin if all were put in a row."""

    @property
    def longest(self) -> int:
        """Bytes of the longest."""
        return int(np.diff(self.ends).max(initial=0))


class Similarity:
    """Finds pairs of similar texts."""

    needs: Final = Needs(waiting=400, row=64, kept_row=16, fixed=1 << 19)

    def __init__(self, condition: Similar) -> None:
        """`OptionError` if RapidFuzz is not installed."""
        self._distances = _distances()
        self._at_least = condition.at_least
        self._q = 3 if condition.at_least >= _LONG_GRAMS else 2
        edits = [most_edits(length, condition.at_least) for length in range(LENGTHS)]
        self._known_edits = np.array(edits, np.int32)
        self._name = condition.master
        self._column = pa.nulls(0, pa.large_string())
        self._matched = np.zeros(0, np.bool_)
        self._waiting: Any = None
        self._counts = np.zeros(0, np.int32)
        self._serial = 0
        self._found = Pairs(np.empty(_CANDIDATES, np.int32), np.empty(_CANDIDATES, np.int32))
        self._edits = np.empty(_CANDIDATES, np.int32)

    def tuple_bytes(self, column: pa.Array) -> Sizes | int:
        """What each tuple takes, while it waits, beside its columns."""
        sizes = np.diff(self._measured(_large(column)).starts)
        return np.asarray(128.0 + _TOKEN_BYTES * sizes)

    def keys(self, rows: pa.RecordBatch) -> Texts:
        """The texts of master rows."""
        return Texts(_large(rows.column(self._name)))

    def order(self, keys: Texts) -> NDArray[np.int64] | None:
        """Any order will do."""
        return None

    def begin(self, column: pa.Array) -> None:
        """Another window of tuples waits; the last one is forgotten."""
        self._column = _large(column)
        texts = self._measured(self._column)
        scratch = np.empty(texts.longest + 1, np.uint64)
        self._counts = np.zeros(COUNTERS, np.int32)
        count_grams(texts.ends, texts.data, self._q, self._counts, scratch)
        tokens = np.empty(int(texts.starts[-1]), np.uint64)
        every = len(texts.lengths)
        self._prefixes(texts, 0, every, tokens, scratch)
        owners = np.repeat(np.arange(every, dtype=np.int32), np.diff(texts.starts))
        order = np.argsort(tokens)
        by_length = np.argsort(texts.lengths, kind="stable").astype(np.int32)
        by_length = by_length[self._column.null_count :]
        self._matched = np.zeros(every, np.bool_)
        self._serial = 1
        self._waiting = (
            tokens[order],
            owners[order],
            texts.lengths,
            texts.characters,
            by_length,
            np.zeros(every, np.int64),
            self._matched,
        )

    def pairs(self, keys: Texts, out: Pairs | None) -> Iterator[int]:
        """Fill `out` with pairs again and again, or with None only note which tuples match."""
        filled = 0
        for count in self._candidates(keys.column, out is None):
            tuples, rows = self._similar(keys.column, count)
            self._matched[tuples] = True
            if out is None:
                continue
            at = 0
            while at < len(tuples):
                stop = min(len(tuples), at + len(out.tuples) - filled)
                filled = _append(out, filled, tuples[at:stop], rows[at:stop])
                at = stop
                if filled == len(out.tuples):
                    yield filled
                    filled = 0
        if filled:
            yield filled

    def matched(self) -> NDArray[np.bool_]:
        """Which tuples of the window have a match so far."""
        return self._matched

    def _candidates(self, column: pa.Array, skip_matched: bool) -> Iterator[int]:
        """Fill the candidates again and again; yields how many there are."""
        texts = self._measured(column)
        scratch = np.empty(texts.longest + 1, np.uint64)
        most = int(np.diff(texts.starts).max(initial=0))
        tokens = np.empty(max(_TOKENS, most), np.uint64)
        first, rows = 0, len(texts.lengths)
        while first < rows:
            fits = np.searchsorted(texts.starts, texts.starts[first] + len(tokens), "right") - 1
            stop = min(int(fits), rows)
            self._prefixes(texts, first, stop, tokens, scratch)
            state = np.array([first, 0, -1], np.int64)
            while state[0] < stop:
                count = candidates(
                    self._waiting,
                    texts.lengths,
                    texts.characters,
                    texts.starts,
                    tokens,
                    first,
                    stop,
                    self._at_least,
                    self._q,
                    self._known_edits,
                    self._serial,
                    skip_matched,
                    state,
                    *self._found,
                    self._edits,
                    _CHARACTERS,
                )
                if count:
                    yield count
            first = stop
        self._serial += rows

    def _similar(self, column: pa.Array, count: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Those of the candidates that are similar."""
        tuples, rows, edits = (a[:count] for a in (*self._found, self._edits))
        left = _strings(self._column, tuples)
        right = _strings(column, rows)
        near = self._distances(left, right, int(edits.max())) <= edits
        return tuples[near], rows[near]

    def _prefixes(
        self,
        texts: _Measured,
        first: int,
        stop: int,
        tokens: NDArray[np.uint64],
        scratch: NDArray[np.uint64],
    ) -> None:
        prefixes(
            texts.ends,
            texts.data,
            self._q,
            self._counts,
            texts.starts,
            first,
            stop,
            tokens,
            scratch,
        )

    def _measured(self, column: pa.Array) -> _Measured:
        ends, data = ends_and_data(column)
        count = len(column)
        lengths, characters = np.empty(count, np.int32), np.empty(count, np.uint64)
        measure(ends, data, lengths, characters)
        if column.null_count:
            lengths[to_numpy(column.is_null())] = -1
        sizes = np.empty(count, np.int32)
        prefix_sizes(lengths, self._at_least, self._q, sizes)
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        return _Measured(ends, data, lengths, characters, starts)


def _append(out: Pairs, filled: int, tuples: NDArray[np.int32], rows: NDArray[np.int32]) -> int:
    stop = filled + len(tuples)
    out.tuples[filled:stop], out.rows[filled:stop] = tuples, rows
    return stop


def _large(column: pa.Array) -> pa.Array:
    return column if column.type == pa.large_string() else column.cast(pa.large_string())


def _strings(column: pa.Array, places: NDArray[np.int32]) -> list[str]:
    """Some values as Python's strings. They are decoded together, which is a few times faster."""
    taken = column.take(to_arrow(places))
    ends = np.cumsum(to_numpy(pc.utf8_length(taken))).tolist()
    offsets, data = ends_and_data(taken)
    text = bytes(data[offsets[0] : offsets[-1]]).decode()
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
