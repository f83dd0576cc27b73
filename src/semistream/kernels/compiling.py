"""How the kernels are compiled: on first use, without the GIL, and once for all processes.

What is compiled is kept on disk by Numba. Three things are done differently here:

- Before Numba loads a kernel from disk it gets ready to compile, which takes longer than all the
  loading and as much memory as a small budget. Here it gets ready when there is something to
  compile.
- To call a kernel, Numba finds out the types of its arguments, and for tuples of arrays it does so
  in Python, which can take as long as the kernel. Here what was found is remembered.
- Workers start together and want the same kernels. The first compiles; the others wait for it,
  and load.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
from numba import types
from numba.core.caching import FunctionCache
from numba.core.registry import CPUDispatcher
from numba.core.runtime.nrt import rtsys

_Function = TypeVar("_Function", bound=Callable[..., Any])

_types: Final[dict[Any, Any]] = {}
"""Numba's types of tuples, by what they follow from."""
_PLAIN: Final = (float, bool)
_LOCK_FILE: Final = "compiling.lock"
_locks: Final[dict[str, int]] = {}
"""The open lock file of each folder. To close one would give up all of its locks."""


def kernel(function: _Function) -> _Function:
    """Compile `function` when it is first called, keeping its type."""
    return _compiled(function, counts=True)


def borrowing_kernel(function: _Function) -> _Function:
    """A kernel that only uses the arrays it is given: it makes none and returns none.

    So it need not count who refers to them. For a kernel that another one calls for each tuple,
    counting takes longer than much of what it does.
    """
    return _compiled(function, counts=False)


def _compiled(function: _Function, counts: bool) -> _Function:
    options = {"nopython": True, "nogil": True, "no_cfunc_wrapper": True, "_nrt": counts}
    compiled = _Kernel(function, targetoptions=options)
    compiled.enable_caching()
    return cast(_Function, compiled)


class _Kernel(CPUDispatcher):
    """A function of Numba's, compiled by one process at a time."""

    def enable_caching(self) -> None:
        cache: Any = _KernelCache
        self._cache = cache(self.py_func)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """For a call by another kernel: integers of all sorts are int64, so that one will do."""
        named = {name: _widened(kind) for name, kind in kws.items()}
        return super().get_call_template(tuple(_widened(kind) for kind in args), named)

    def typeof_pyval(self, val: Any) -> Any:
        """The type of an argument that Numba's C code does not know, such as a tuple of arrays."""
        sort = _sort_of(val)
        if sort is None:
            return super().typeof_pyval(val)
        found = _types.get(sort)
        if found is None:
            found = _types[sort] = super().typeof_pyval(val)
        return found

    def compile(self, sig: Any) -> Any:
        """Called once for each combination of types."""
        try:
            return super().compile(sig)
        finally:
            self._cache.unlock()


class _KernelCache(FunctionCache):
    """What is on disk of a kernel. After a miss it stays locked for whoever compiles now."""

    _held: tuple[int, int] | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        load: Any = self._load_overload
        rtsys.initialize(target_context)
        found = load(sig, target_context)
        if found is None:
            self._lock()
            found = load(sig, target_context)
        if found is None:
            target_context.refresh()
        return found

    def _lock(self) -> None:
        """Wait until no other process compiles this kernel; do not, where files have no locks."""
        function = self._py_func
        place = zlib.crc32(f"{function.__module__}.{function.__qualname__}".encode())
        try:
            lock = _opened(self.cache_path)
            fcntl.lockf(lock, fcntl.LOCK_EX, 1, place)
        except OSError:
            return
        self._held = lock, place

    def unlock(self) -> None:
        """Let another process have it."""
        if self._held is not None:
            lock, place = self._held
            self._held = None
            fcntl.lockf(lock, fcntl.LOCK_UN, 1, place)


def kept(function: Callable[..., Any]) -> str:
    """The folder where the compiled code of a kernel, and of others in its package, is kept."""
    path: str = cast(_Kernel, function)._cache.cache_path
    return path


def _sort_of(value: Any) -> Any:
    """What the type of a tuple follows from: the same for tuples of one type. None for others."""
    if not isinstance(value, tuple):
        return None
    sorts: list[Any] = [type(value)]
    for each in value:
        if type(each) is np.ndarray:
            sorts.append((each.dtype, each.ndim, each.flags.num))
        elif type(each) in _PLAIN or (type(each) is int and each.bit_length() < 64):
            sorts.append(type(each))
        elif (sort := _sort_of(each)) is not None:
            sorts.append(sort)
        else:
            return None
    return tuple(sorts)


def _widened(kind: Any) -> Any:
    """The type of an argument; constants and small signed integers count as int64."""
    unliteral: Any = types.unliteral
    plain = unliteral(kind)
    return types.int64 if plain in types.signed_domain else plain


def _opened(folder: str) -> int:
    if folder not in _locks:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, _LOCK_FILE)
        _locks[folder] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return _locks[folder]
