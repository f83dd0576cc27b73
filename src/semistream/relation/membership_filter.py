"""Membership filter: a few bits per key that say which keys are certainly not in R.

Without it, a stream tuple whose key is not in R costs a page read that finds nothing. A blocked
Bloom filter (Putze, Sanders, Singler: *Cache-, Hash- and Space-Efficient Bloom Filters*, WEA 2007)
answers without a read: a code selects a block of 64 bytes, one cache line, and some bits in it.

    code ─► mix ─┬─► block ──► | 64 bytes | 64 bytes | ... |
                 └─► probes bits in it: all set → may be in R, else certainly not

"No" is always right. "Yes" is wrong for a few codes, and for fewer the more bits per key there are;
docs/membership-filter.md has the measured rates.

The file is a header of 64 bytes and the blocks. It has the same form in memory and on disk.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.errors import MasterFormatError, OptionError
from semistream.kernels import kernel
from semistream.key_hash import fmix64
from semistream.keys import Codes
from semistream.relation.storage import Storage, checksum_bytes

__all__ = ["SLICE_BLOCKS", "FilterShape", "MembershipFilter", "check_bits", "expected_rate"]

_BLOCK_BYTES: Final = 64
_BLOCK_BITS: Final = 512
_MIN_BITS, _MAX_BITS = 4, 32
_MOST_PROBES: Final = 14
"""The bit numbers that two mixed words give. More probes would gain next to nothing."""
_PER_WORD: Final = 7
"""Bit numbers in a mixed word: nine bits each."""
SLICE_BLOCKS: Final = 1 << 14
"""Blocks of a slice: one megabyte."""
_MAGIC: Final = b"SSBLOOM1"
_HEADER: Final = struct.Struct("<8s4q24x")

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE, _S3, _S6, _S9 = np.uint64(1), np.uint64(3), np.uint64(6), np.uint64(9)
_S32 = np.uint64(32)
_IN_BLOCK, _IN_WORD = np.uint64(511), np.uint64(63)


@kernel
def _block(mixed: np.uint64, blocks: np.uint64) -> np.uint64:
    """The number of the block, below `blocks`, that a mixed code selects.

    Codes are mixed first, because they may be consecutive numbers.
    """
    return (mixed >> _S32) * blocks >> _S32


@kernel
def blocks_of(codes: Codes, blocks: int, out: NDArray[np.int64]) -> None:
    """The number of the block, below `blocks`, that each code selects."""
    for i in range(len(codes)):
        out[i] = np.int64(_block(fmix64(np.uint64(codes[i])), np.uint64(blocks)))


@kernel
def add(words: NDArray[np.uint64], begin: int, blocks: int, probes: int, codes: Codes) -> None:
    """Set the bits of each code. `words` are those of the blocks from block `begin` on."""
    for i in range(len(codes)):
        mixed = fmix64(np.uint64(codes[i]))
        first = (_block(mixed, np.uint64(blocks)) - np.uint64(begin)) << _S3
        bits = mixed
        for j in range(probes):
            if j % _PER_WORD == 0:
                mixed = fmix64(mixed + _GOLDEN)
                bits = mixed
            place = bits & _IN_BLOCK
            words[first + (place >> _S6)] |= _ONE << (place & _IN_WORD)
            bits >>= _S9


@kernel
def may_contain(
    words: NDArray[np.uint64], probes: int, codes: Codes, out: NDArray[np.bool_]
) -> None:
    """Whether all bits of each code are set."""
    early = min(probes, _PER_WORD)
    for i in range(len(codes)):
        mixed = fmix64(np.uint64(codes[i]))
        first = _block(mixed, np.uint64(len(words) >> 3)) << _S3
        mixed = fmix64(mixed + _GOLDEN)
        bits = mixed
        every = _ONE
        # No exit at the first zero: without that branch, the loads of many codes overlap.
        for _ in range(early):
            place = bits & _IN_BLOCK
            every &= words[first + (place >> _S6)] >> (place & _IN_WORD)
            bits >>= _S9
        if probes > _PER_WORD and every == _ONE:
            bits = fmix64(mixed + _GOLDEN)
            for _ in range(_PER_WORD, probes):
                place = bits & _IN_BLOCK
                every &= words[first + (place >> _S6)] >> (place & _IN_WORD)
                bits >>= _S9
        out[i] = every == _ONE


def check_bits(filter_bits: int) -> None:
    """Raise `OptionError` unless it is 0 (no filter) or an allowed number of bits per key."""
    if type(filter_bits) is not int or not (
        filter_bits == 0 or _MIN_BITS <= filter_bits <= _MAX_BITS
    ):
        raise OptionError(
            f"filter_bits={filter_bits!r} must be 0, for no membership filter, or an int from "
            f"{_MIN_BITS} to {_MAX_BITS}: bits per key. 10 lets about 1 % of absent keys pass."
        )


def expected_rate(bits: float, probes: int) -> float:
    """The expected share of absent codes that pass (Putze et al. 2007, §3).

    Keys fall into blocks at random, so the number of keys in a block is Poisson-distributed.

    >>> round(expected_rate(10, 7), 4)
    0.0096
    """
    keys = np.arange(4 * _BLOCK_BITS)
    mean = _BLOCK_BITS / bits
    factorials = np.concatenate([[0.0], np.cumsum(np.log(keys[1:]))])
    share = np.exp(keys * math.log(mean) - mean - factorials)
    filled = 1.0 - (1.0 - 1.0 / _BLOCK_BITS) ** (probes * keys)
    return float((share * filled**probes).sum())


def _best_probes(bits: int) -> int:
    return min(range(1, _MOST_PROBES + 1), key=lambda probes: expected_rate(bits, probes))


@dataclass(frozen=True)
class FilterShape:
    """The sizes of a filter, and how to make it in slices: runs of `SLICE_BLOCKS` blocks."""

    keys: int
    bits: int
    blocks: int
    probes: int

    @classmethod
    def of(cls, keys: int, bits: int) -> FilterShape:
        """The shape for a number of distinct keys, with `bits` bits each."""
        return cls(keys, bits, max(1, -(-keys * bits // _BLOCK_BITS)), _best_probes(bits))

    @property
    def header(self) -> bytes:
        """The beginning of the file."""
        return _HEADER.pack(_MAGIC, self.bits, self.probes, self.blocks, self.keys)

    def slices_of(self, codes: Codes) -> NDArray[np.int64]:
        """The number of the slice that each code belongs to."""
        out = np.empty(len(codes), np.int64)
        blocks_of(_read_only(codes), self.blocks, out)
        return out // SLICE_BLOCKS

    def slice_words(self, number: int) -> NDArray[np.uint64]:
        """An empty slice."""
        begin = number * SLICE_BLOCKS
        return np.zeros(min(SLICE_BLOCKS, self.blocks - begin) * 8, np.uint64)

    def add(self, words: NDArray[np.uint64], number: int, codes: Codes) -> None:
        """Put codes into their slice, which has this number."""
        add(words, number * SLICE_BLOCKS, self.blocks, self.probes, _read_only(codes))


class MembershipFilter:
    """Says of a code that it is not in R, or that it may be.

    >>> some = MembershipFilter.sized(keys=1000, bits=10)
    >>> some.add(np.arange(1000))
    >>> bool(some.may_contain(np.arange(1000)).all())
    True
    >>> some.nbytes, some.probes
    (1344, 7)
    """

    def __init__(self, buffer: pa.Buffer) -> None:
        """From a buffer that `sized` made or a file held; `ValueError` if it is neither."""
        header = memoryview(buffer)[: _HEADER.size]
        if len(header) < _HEADER.size:
            raise ValueError("it is shorter than its header")
        magic, self.bits, self.probes, blocks, self.keys = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise ValueError("it does not begin as one does")
        fine = 1 <= self.probes <= _MOST_PROBES and self.keys >= 0 and self.bits > 0 < blocks
        if not fine or buffer.size != _HEADER.size + blocks * _BLOCK_BYTES:
            raise ValueError("its header does not fit its size")
        self._buffer = buffer
        self._words = np.frombuffer(buffer, np.uint64, offset=_HEADER.size)

    @classmethod
    def sized(cls, keys: int, bits: int) -> MembershipFilter:
        """An empty filter for a number of distinct keys, with `bits` bits each."""
        shape = FilterShape.of(keys, bits)
        buffer = _memory(_HEADER.size + shape.blocks * _BLOCK_BYTES)
        content = np.frombuffer(buffer, np.uint8)
        content[:] = 0
        content[: _HEADER.size] = np.frombuffer(shape.header, np.uint8)
        return cls(buffer)

    @classmethod
    def load(cls, storage: Storage, name: str, nbytes: int, checksum: str) -> MembershipFilter:
        """Read a filter of `nbytes` bytes; `MasterFormatError` if it is broken."""
        buffer = _memory(nbytes)
        try:
            found = storage.read_into(name, memoryview(buffer))
            if found != nbytes:
                raise ValueError(f"it has {found:,} bytes, expected {nbytes:,}")
            summed = checksum_bytes(memoryview(buffer))
            if summed != checksum:
                raise ValueError(f"it has checksum {summed}, expected {checksum}")
            return cls(buffer)
        except (OSError, ValueError) as error:
            raise MasterFormatError(
                f"Membership filter {storage.shown(name)} is broken: {error}. Restore the file, "
                "build the master again, or join without it (use_filter=False)."
            ) from error

    @property
    def data(self) -> memoryview:
        """The filter as a file holds it."""
        return memoryview(self._buffer)

    @property
    def nbytes(self) -> int:
        """Bytes the filter takes in memory, and on disk."""
        return int(self._buffer.size)

    @property
    def expected_rate(self) -> float:
        """The share of absent codes that should pass, for its keys and size."""
        if not self.keys:
            return 0.0
        return expected_rate(self._words.size * 64 / self.keys, self.probes)

    def bits_for(self, keys: int) -> float:
        """Bits per key, if it held this number of keys."""
        return self._words.size * 64 / max(keys, 1)

    def extended(self, codes: Codes, keys: int) -> MembershipFilter:
        """A copy of the same size with these codes added; `keys` is its new number of keys."""
        buffer = _memory(self.nbytes)
        np.frombuffer(buffer, np.uint8)[:] = np.frombuffer(self._buffer, np.uint8)
        blocks = self._words.nbytes // _BLOCK_BYTES
        _HEADER.pack_into(buffer, 0, _MAGIC, self.bits, self.probes, blocks, keys)
        copied = MembershipFilter(buffer)
        copied.add(codes)
        return copied

    def add(self, codes: Codes) -> None:
        """Add codes; O(1) each. Only for a filter that `sized` has made."""
        add(self._words, 0, len(self._words) >> 3, self.probes, _read_only(codes))

    def may_contain(self, codes: Codes) -> NDArray[np.bool_]:
        """Whether each code may be in the filter; False is certain. O(1) each."""
        out = np.empty(len(codes), np.bool_)
        may_contain(self._words, self.probes, _read_only(codes), out)
        return out


def _memory(nbytes: int) -> pa.Buffer:
    """Memory that begins at a cache line, so that each block is one cache line."""
    return pa.allocate_buffer(nbytes)


def _read_only(codes: Codes) -> Codes:
    """The same codes, read-only as codes of streams are, so that Numba compiles only once."""
    view = codes.view()
    view.flags.writeable = False
    return view
