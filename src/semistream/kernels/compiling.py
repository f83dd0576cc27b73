"""How the kernels are compiled: cached on disk, and without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compile `function` with caching and without the GIL, keeping its type."""
    return cast(_Function, numba.njit(cache=True, nogil=True)(function))
