"""XXH3 of all but the shortest messages, so that pages are checked where they are read.

The checksum of a page is the 64-bit XXH3 of its bytes, which any XXH3 library computes. This one
is for compiled code, which cannot call a library. No page has 128 bytes or less: those of a page's
description alone are more. Up to 240 bytes XXH3 adds up products of 16 bytes; for more it keeps
eight sums over stripes of 64 bytes, mixed after every 16 stripes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from semistream.kernels.compiling import kernel
from semistream.kernels.copying import load_8

SHORTEST: Final = 129
"""No message may be shorter."""
_LONGEST_SHORT: Final = 240

_SECRET: Final = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
        "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
        "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
        "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
        "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint8,
)
_STRIPE, _STRIPES = 64, 16
_BLOCK = _STRIPE * _STRIPES
_LAST_KEY, _MIX_KEY, _MERGE_KEY = 192 - 64 - 7, 192 - 64, 11


def _keys(begin: int) -> list[int]:
    """The eight words of the secret from byte `begin` on."""
    words: list[int] = np.frombuffer(_SECRET[begin : begin + _STRIPE].tobytes(), "<u8").tolist()
    return words


_STRIPE_KEYS: Final = np.array([_keys(8 * n) for n in range(_STRIPES)], np.uint64)
_LAST_KEYS: Final = np.array(_keys(_LAST_KEY), np.uint64)
_MIX_KEYS: Final = np.array(_keys(_MIX_KEY), np.uint64)
_MERGE_KEYS: Final = np.array(_keys(_MERGE_KEY), np.uint64)

_SHORT_KEYS: Final = np.array(
    [_keys(16 * n)[:2] for n in range(8)] + [_keys(16 * n + 3)[:2] for n in range(7)], np.uint64
)
_SHORT_LAST_KEY: Final = np.array(_keys(136 - 17)[:2], np.uint64)

_P32_1, _P32_2, _P32_3 = np.uint64(0x9E3779B1), np.uint64(0x85EBCA77), np.uint64(0xC2B2AE3D)
_P64_1, _P64_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P64_3, _P64_4 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)
_P64_5 = np.uint64(0x27D4EB2F165667C5)
_START: Final = np.array([_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1])
_AVALANCHE = np.uint64(0x165667919E3779F9)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def _stripe_adder() -> Callable[[int, int, int], None]:
    """A function for kernels: add the stripe at an address to eight sums, mixed with eight keys.

    Written for all eight words at once: the compiler does not find that out from a loop.
    """

    def add(typing_context: Any, sums: Any, at: Any, keys: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = ir.IntType(64)
            words = ir.VectorType(word, 8)
            target, source, secret = (
                builder.inttoptr(address, words.as_pointer()) for address in arguments
            )
            data = builder.load(source, align=1)
            mixed = builder.xor(data, builder.load(secret, align=8))
            low = builder.and_(mixed, ir.Constant(words, [0xFFFFFFFF] * 8))
            high = builder.lshr(mixed, ir.Constant(words, [32] * 8))
            order = ir.Constant(ir.VectorType(ir.IntType(32), 8), [i ^ 1 for i in range(8)])
            swapped = builder.shuffle_vector(data, data, order)
            sums = builder.add(builder.load(target, align=8), builder.mul(low, high))
            builder.store(builder.add(sums, swapped), target, align=8)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), generate

    return cast("Callable[[int, int, int], None]", intrinsic(add))


_add_stripe = _stripe_adder()


@kernel
def _folded_product(a: np.uint64, b: np.uint64) -> np.uint64:
    """The halves of the 128-bit product, one xor the other."""
    low_low = (a & _LOW) * (b & _LOW)
    high_low, low_high = (a >> _HALF) * (b & _LOW), (a & _LOW) * (b >> _HALF)
    cross = (low_low >> _HALF) + (high_low & _LOW) + low_high
    high = (high_low >> _HALF) + (cross >> _HALF) + (a >> _HALF) * (b >> _HALF)
    return high ^ ((cross << _HALF) | (low_low & _LOW))


@kernel
def _avalanche(hashed: np.uint64) -> np.uint64:
    hashed = (hashed ^ (hashed >> np.uint64(37))) * _AVALANCHE
    return hashed ^ (hashed >> _HALF)


@kernel
def _mixed(at: int, keys: NDArray[np.uint64]) -> np.uint64:
    """The product of the two words at an address, each mixed with its key."""
    return _folded_product(np.uint64(load_8(at)) ^ keys[0], np.uint64(load_8(at + 8)) ^ keys[1])


@kernel
def _short(at: int, length: int) -> np.uint64:
    """The checksum of 129 to 240 bytes."""
    hashed = np.uint64(length) * _P64_1
    for n in range(length // 16):
        hashed += _mixed(at + 16 * n, _SHORT_KEYS[n])
        if n == 7:
            hashed = _avalanche(hashed)
    return _avalanche(hashed + _mixed(at + length - 16, _SHORT_LAST_KEY))


@kernel
def xxh3(at: int, length: int) -> np.uint64:
    """The checksum of `length` bytes, at least `SHORTEST`, from address `at` on."""
    if length <= _LONGEST_SHORT:
        return _short(at, length)
    sums = _START.copy()
    to, keys = sums.ctypes.data, _STRIPE_KEYS.ctypes.data
    blocks = (length - 1) // _BLOCK
    for block in range(blocks):
        for n in range(_STRIPES):
            _add_stripe(to, at + block * _BLOCK + n * _STRIPE, keys + n * _STRIPE)
        for i in range(8):
            sums[i] = ((sums[i] ^ (sums[i] >> np.uint64(47))) ^ _MIX_KEYS[i]) * _P32_1
    for n in range((length - 1 - blocks * _BLOCK) // _STRIPE):
        _add_stripe(to, at + blocks * _BLOCK + n * _STRIPE, keys + n * _STRIPE)
    _add_stripe(to, at + length - _STRIPE, _LAST_KEYS.ctypes.data)
    hashed = np.uint64(length) * _P64_1
    for i in range(4):
        a, b = sums[2 * i] ^ _MERGE_KEYS[2 * i], sums[2 * i + 1] ^ _MERGE_KEYS[2 * i + 1]
        hashed += _folded_product(a, b)
    return _avalanche(hashed)
