"""The hash that turns a key into a code.

Codes are written to disk, so the hash never changes. All arithmetic is modulo 2**64:

    fmix64(h):   h ^= h >> 33; h *= 0xFF51AFD7ED558CCD
                 h ^= h >> 33; h *= 0xC4CEB9FE1A85EC53; h ^= h >> 33        (MurmurHash3)
    bytes:       h = length * 0x9E3779B97F4A7C15
                 for each little-endian 8-byte word w, the last one padded with zero bytes:
                     h = (h ^ w) * 0x9FB21C651E98DF25; h ^= h >> 32
                 fmix64(h)
    exact value: fmix64(code), as a component of a composite key
    composite:   h = 0; for each component c: h = fmix64(((h + 0x9E3779B97F4A7C15)
                                                          * 0x9FB21C651E98DF25) ^ c)

Strings are hashed as their UTF-8 bytes, decimals as the bytes of their unscaled
two's-complement value at the width of the master's type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semistream.kernels import kernel
from semistream.kernels.copying import load_1, load_8

__all__ = ["combine", "fmix64", "hash_fixed", "hash_values", "hash_variable"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0x9FB21C651E98DF25)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_S32, _S33 = np.uint64(32), np.uint64(33)


@kernel
def fmix64(h: np.uint64) -> np.uint64:
    """MurmurHash3's finaliser: every bit of the result depends on every bit of h."""
    h = (h ^ (h >> _S33)) * _MIX_1
    h = (h ^ (h >> _S33)) * _MIX_2
    return h ^ (h >> _S33)


@kernel
def _hash_span(data: int, start: int, stop: int) -> np.uint64:
    """Hash the bytes from `start` to before `stop` of what is at the address `data`."""
    h = np.uint64(stop - start) * _GOLDEN
    at = start
    while at + 8 <= stop:
        h = (h ^ np.uint64(load_8(data + at))) * _PRIME
        h ^= h >> _S32
        at += 8
    if at < stop:
        tail = np.uint64(0)
        if stop >= 8:
            # The word that ends here begins with bytes of this value or of those before it.
            tail = np.uint64(load_8(data + stop - 8)) >> np.uint64(8 * (8 - (stop - at)))
        else:
            for i in range(at, stop):
                tail |= np.uint64(load_1(data + i)) << np.uint64(8 * (i - at))
        h = (h ^ tail) * _PRIME
        h ^= h >> _S32
    return fmix64(h)


@kernel
def hash_variable(offsets: NDArray[Any], data: NDArray[np.uint8], out: NDArray[np.uint64]) -> None:
    """Hash values of varying length: data[offsets[i]:offsets[i + 1]]."""
    # An address and not an array, which would count references for each value.
    there = data.ctypes.data
    for i in range(out.size):
        # Both widths of offsets become int64, so that `_hash_span` is compiled once. To Numba,
        # np.int64 is an int.
        begin, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
        out[i] = _hash_span(there, begin, end)  # type: ignore[arg-type]


@kernel
def hash_fixed(data: NDArray[np.uint8], width: int, out: NDArray[np.uint64]) -> None:
    """Hash values of `width` bytes each."""
    there = data.ctypes.data
    for i in range(out.size):
        out[i] = _hash_span(there, i * width, (i + 1) * width)


@kernel
def hash_values(values: NDArray[np.int64], out: NDArray[np.uint64]) -> None:
    """Hash exact codes, as components of a composite key."""
    for i in range(out.size):
        out[i] = fmix64(np.uint64(values[i]))


@kernel
def combine(parts: NDArray[np.uint64], into: NDArray[np.uint64]) -> None:
    """Fold the hashes of one more component into those of the components before it."""
    for i in range(into.size):
        into[i] = fmix64(((into[i] + _GOLDEN) * _PRIME) ^ parts[i])
