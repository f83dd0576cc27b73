"""Copying values by address: whatever their width and alignment, and without a loop over bytes.

Values of varying size are short, and a loop over single bytes takes longer than all the rest.
They are copied sixteen bytes at a time and beyond their end, so that source and target need
`SPILL` bytes behind the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

SPILL: Final = 16
"""Bytes that may be touched behind the end."""


def _copier(bits: int) -> Callable[[int, int], None]:
    """A function for kernels that copies so many bits from the second address to the first."""

    def copy(typing_context: Any, to: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = ir.IntType(bits).as_pointer()
            target, source = (builder.inttoptr(address, pointer) for address in arguments)
            builder.store(builder.load(source, align=1), target, align=1)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), generate

    return cast("Callable[[int, int], None]", intrinsic(copy))


def _loader(bits: int, kind: Any) -> Callable[[int], int]:
    """A function for kernels that loads an integer of so many bits from an address."""

    def load(typing_context: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(source, align=1)

        return kind(types.intp), generate

    return cast("Callable[[int], int]", intrinsic(load))


def _filler(bits: int) -> Callable[[int, int], None]:
    """A function for kernels that stores the second number, in so many bits, at an address."""

    def fill(typing_context: Any, to: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            target = builder.inttoptr(arguments[0], kind.as_pointer())
            part = arguments[1] if bits == 64 else builder.trunc(arguments[1], kind)
            builder.store(part, target, align=1)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), generate

    return cast("Callable[[int, int], None]", intrinsic(fill))


def _prefetch(typing_context: Any, at: Any) -> Any:
    """Ask for the cache line at an address, which need not be valid, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        address = builder.inttoptr(arguments[0], pointer)
        # To read, into all caches, as data.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.intp), generate


copy_1, copy_2, copy_4, copy_8 = _copier(8), _copier(16), _copier(32), _copier(64)
copy_16 = _copier(128)
load_1, load_2 = _loader(8, types.uint8), _loader(16, types.uint16)
load_4, load_8 = _loader(32, types.int32), _loader(64, types.int64)
fill_1, fill_4, fill_8 = _filler(8), _filler(32), _filler(64)
prefetch = cast("Callable[[int], None]", intrinsic(_prefetch))
