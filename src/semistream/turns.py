"""Turns: the processes of one user on one machine do something one after the other."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import tempfile
import time
from collections.abc import Iterator

__all__ = ["turn"]


@contextlib.contextmanager
def turn(what: str, longest: float) -> Iterator[None]:
    """Wait until no other process does `what`, at most for `longest` seconds.

    Who has waited so long, or cannot have the lock file, goes on without: a turn spares work that
    would be in vain, and nothing may depend on it.
    """
    name = hashlib.sha256(os.fsencode(what)).hexdigest()[:16]
    file = os.path.join(tempfile.gettempdir(), f"semistream-{os.getuid()}-{name}.lock")
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        until = time.monotonic() + longest
        while time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(random.uniform(0.001, 0.01))
        yield
    finally:
        os.close(descriptor)
