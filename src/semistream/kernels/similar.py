"""Which texts can be similar: a filter that never loses a pair and keeps most others out.

A text's *grams* are its runs of q adjacent characters. Two texts of which the longer has m
characters, with at most k edits between them, share at least s = m − q + 1 − kq of their grams
(Gravano et al. 2001). So if all grams are put into one order, the first few of either text, its
*prefix*, must have one in common (Chaudhuri et al. 2006), or several if it is made a little longer
(Wang, Li and Feng 2012). The order begins with what is rare among the waiting texts. Where s is not
above zero, because texts are short or may differ much, all texts of a fitting length are
candidates. Candidates must also agree in which characters they have, but for k on either side.

Equal hashes stand for equal grams: a collision makes a candidate more, never one less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.compiling import kernel

Ends = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Lengths = NDArray[np.int32]
Words = NDArray[np.uint64]
Places = NDArray[np.int32]

COUNTERS = 1 << 16
LENGTHS = 1 << 12
"""Longer texts are in one class."""
_MOST_SHARED = 3
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
_RANK = np.uint64(41)
_CLASS = np.uint64(LENGTHS - 1)
_HASH = np.uint64((1 << 41) - LENGTHS)
"""A token is a gram's rank, 29 bits of its hash, and the length of its text."""
_MOST_COUNT = (1 << 22) - 1
_ROUNDED = 1e-9
"""More than products of a share and a length are rounded by, and less than one edit."""


@kernel
def most_edits(length: int, at_least: float) -> int:
    """The most edits d with 1 − d / length >= at_least, as if numbers were not rounded."""
    return min(length, int(length - at_least * length + _ROUNDED))


@kernel
def _longest(length: int, at_least: float) -> int:
    """The longest text that a text of this length can be similar to."""
    longest = int(length / at_least) + 1
    while longest > length and longest - most_edits(longest, at_least) > length:
        longest -= 1
    return longest


@kernel
def shared_grams(longer: int, edits: int, q: int) -> int:
    """How many grams texts must share that are so many edits apart; not above 0 if none."""
    return longer - q + 1 - q * edits


@kernel
def prefix_size(length: int, at_least: float, q: int) -> int:
    """How many grams are enough to find all similar texts by."""
    most = 0
    for longer in range(length, _longest(length, at_least) + 1):
        edits = most_edits(longer, at_least)
        shared = shared_grams(longer, edits, q)
        if shared > 0:
            most = max(most, length - longer + q * edits + min(shared, _MOST_SHARED))
    return min(most, max(0, length - q + 1))


@kernel
def _is_loose(length: int, at_least: float, q: int) -> bool:
    """Whether it can be similar to a text with which it need not share a gram."""
    for longer in range(length, _longest(length, at_least) + 1):
        if shared_grams(longer, most_edits(longer, at_least), q) <= 0:
            return True
    return False


@kernel
def _mixed(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> _SHIFT)) * _MIX
    return word ^ (word >> _SHIFT)


@kernel
def measure(ends: Ends, data: Bytes, lengths: Lengths, characters: Words) -> None:
    """The characters of each UTF-8 text: how many, and which, as a bit in 64 each."""
    for i in range(len(lengths)):
        count = 0
        bits = np.uint64(0)
        at = ends[i]
        while at < ends[i + 1]:
            point, at = _character(data, at, ends[i + 1])
            bits |= np.uint64(1) << (_mixed(np.uint64(point)) & np.uint64(63))
            count += 1
        lengths[i] = count
        characters[i] = bits


@kernel
def _character(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The bytes of the character at this place as a number, and where the next one begins."""
    point = np.int64(data[at])
    at += 1
    while at < end and (data[at] & 0xC0) == 0x80:
        point = point << 8 | np.int64(data[at])
        at += 1
    return int(point), at


@kernel
def _grams(ends: Ends, data: Bytes, i: int, q: int, grams: Words) -> int:
    """Hashes of a text's grams; if one comes again, its number is hashed with it."""
    count = 0
    at, end = ends[i], ends[i + 1]
    before = last = 0
    while at < end:
        point, at = _character(data, at, end)
        if count >= q - 1:
            word = _mixed(np.uint64(last) * _MIX + np.uint64(point))
            if q == 3:
                word = _mixed(word + np.uint64(before) * _MIX)
            grams[count - q + 1] = word
        before, last = last, point
        count += 1
    count = max(0, count - q + 1)
    some = grams[:count]
    some.sort()
    again = np.uint64(0)
    gram_before = np.uint64(0)
    for j in range(count):
        gram = some[j]
        again = again + np.uint64(1) if j > 0 and gram == gram_before else np.uint64(0)
        gram_before = gram
        if again:
            some[j] = _mixed(gram + again * _MIX)
    return count


@kernel
def count_grams(ends: Ends, data: Bytes, q: int, counts: Lengths, scratch: Words) -> None:
    """How many texts have each gram, in counters that several may share."""
    for i in range(len(ends) - 1):
        for j in range(_grams(ends, data, i, q, scratch)):
            place = scratch[j] & np.uint64(COUNTERS - 1)
            counts[place] = min(counts[place] + 1, _MOST_COUNT)


@kernel
def prefix_sizes(lengths: Lengths, at_least: float, q: int, sizes: Lengths) -> None:
    """The size of each text's prefix."""
    known, size = -1, 0
    for i in range(len(lengths)):
        if lengths[i] != known:
            known = lengths[i]
            size = prefix_size(known, at_least, q)
        sizes[i] = size


@kernel
def prefixes(
    ends: Ends,
    data: Bytes,
    q: int,
    counts: Lengths,
    starts: Ends,
    first: int,
    stop: int,
    tokens: Words,
    scratch: Words,
) -> None:
    """The prefixes of texts first..stop: the rarest grams first.

    That of text i begins at `starts[i]`; the first one of these is put at the beginning.
    """
    for i in range(first, stop):
        size = starts[i + 1] - starts[i]
        if size == 0:
            continue
        count = _grams(ends, data, i, q, scratch)
        for j in range(count):
            gram = scratch[j]
            rank = np.uint64(counts[gram & np.uint64(COUNTERS - 1)])
            scratch[j] = rank << _RANK | ((gram << np.uint64(8)) & _HASH)
        some = scratch[:count]
        some.sort()
        begin = starts[i] - starts[first]
        length = np.uint64(min(count + q - 1, LENGTHS - 1))
        for j in range(size):
            tokens[begin + j] = some[j] | length


@kernel
def _first_not_below(tokens: Words, wanted: np.uint64) -> int:
    low, high = -1, len(tokens)
    while high - low > 1:
        middle = (low + high) // 2
        if tokens[middle] < wanted:
            low = middle
        else:
            high = middle
    return high


@kernel
def _ones(word: np.uint64) -> int:
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + (
        (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def _may_be(most: int, length: int, characters: np.uint64, other: int, others: np.uint64) -> bool:
    """Whether texts of these lengths and characters may be no more than `most` edits apart."""
    if abs(length - other) > most:
        return False
    return _ones(characters & ~others) <= most and _ones(others & ~characters) <= most


@kernel
def candidates(
    waiting: tuple[Words, Places, Lengths, Words, Places, Ends, NDArray[np.bool_]],
    lengths: Lengths,
    characters: Words,
    starts: Ends,
    tokens: Words,
    first: int,
    stop: int,
    at_least: float,
    q: int,
    known_edits: Places,
    serial: int,
    skip_matched: bool,
    state: Ends,
    tuples: Places,
    rows: Places,
    edits: Places,
    most_characters: int,
) -> int:
    """Pairs of waiting texts with rows first..stop that may be similar, and their most edits.

    `waiting` has, of the texts that wait: the tokens of all prefixes in order and whose they are,
    lengths, characters, the texts in the order of their length, which row each met last and how
    often, and which have a match. `known_edits` has the most edits by length. `state` says where
    to go on: row, token, place; it is at `stop` in the end. Stops when the output is full, or the
    texts of the pairs have too many characters.
    """
    known, owners, waiting_lengths, waiting_characters, by_length, met, matched = waiting
    count = used = 0
    wanted = np.uint64(0)
    row, token, place = state[0], state[1], state[2]
    while row < stop:
        length = lengths[row]
        prefix = starts[row + 1] - starts[row]
        met_none = (serial + row) * (_MOST_SHARED + 1)
        while length >= 0 and token <= prefix:
            # Behind the last token: texts that need not share any, by their length.
            loose = token == prefix
            shortest = length - _edits_of(length, known_edits, at_least)
            if not loose:
                wanted = tokens[starts[row] - starts[first] + token] & ~_CLASS
                if place < 0:
                    low = np.uint64(min(shortest, LENGTHS - 1))
                    place = _first_not_below(known, wanted | low)
            elif place < 0:
                place = len(by_length)
                if _is_loose(length, at_least, q):
                    place = _first_as_long(waiting_lengths, by_length, shortest)
            while place < (len(by_length) if loose else len(known)):
                if not loose and (known[place] & ~_CLASS) != wanted:
                    break
                other = by_length[place] if loose else owners[place]
                other_length = waiting_lengths[other]
                longer = max(length, other_length)
                most = _edits_of(longer, known_edits, at_least)
                if longer - most > length and longer < LENGTHS:
                    break
                place += 1
                shared = shared_grams(longer, most, q)
                if loose and shared > 0:
                    continue
                if not loose:
                    met[other] = max(met[other], met_none) + 1
                    if met[other] - met_none != min(shared, _MOST_SHARED):
                        met[other] = min(met[other], met_none + _MOST_SHARED)
                        continue
                if skip_matched and matched[other]:
                    continue
                if not _may_be(
                    most, length, characters[row], other_length, waiting_characters[other]
                ):
                    continue
                size = length + other_length
                if count == len(tuples) or (count > 0 and used + size > most_characters):
                    if not loose:
                        met[other] -= 1
                    state[0], state[1], state[2] = row, token, place - 1
                    return count
                tuples[count] = other
                rows[count] = row
                edits[count] = most
                used += size
                count += 1
            token += 1
            place = -1
        row, token, place = row + 1, 0, -1
    state[0], state[1], state[2] = row, 0, -1
    return count


@kernel
def _edits_of(length: int, known_edits: Places, at_least: float) -> int:
    return known_edits[length] if length < len(known_edits) else most_edits(length, at_least)


@kernel
def _first_as_long(lengths: Lengths, by_length: Places, shortest: int) -> int:
    low, high = -1, len(by_length)
    while high - low > 1:
        middle = (low + high) // 2
        if lengths[by_length[middle]] < shortest:
            low = middle
        else:
            high = middle
    return high
