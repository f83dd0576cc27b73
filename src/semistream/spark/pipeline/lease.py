"""The lease on a checkpoint: one pipeline at a time, also after the last one was killed.

    checkpoint/semistream/lease/
      00000007.json           the holder of turn 7: published once, by one pipeline only
      00000007.beat.00000031  renewed every few seconds while the holder lives
      00000007.released       the holder has ended its turn

Whoever publishes the next turn holds the lease, so two that come at once cannot both have it. A
pipeline takes the next turn when the last holder has released it, when it was a process of this
machine that is gone, or when its beats have stood still for half a minute. Only the waiting
pipeline's own clock counts. Before each batch the holder looks whether its turn is still the last.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from semistream.crash_points import reached
from semistream.errors import CheckpointError
from semistream.relation.storage import Location, Storage, storage_at

__all__ = ["Lease", "check_free", "is_held"]

_FORMAT: Final = 1
_FOLDER: Final = "lease"
_BEAT_SECONDS: Final = 5.0
_PATIENCE: Final = 30.0
"""Seconds without a beat after which a holder that cannot be asked is taken for dead."""
_LOOK_SECONDS: Final = 0.5
_NAME: Final = re.compile(r"(\d{8,})\.(json|released|beat\.(\d{8,}))")


class Lease:
    """The turn of one pipeline at a checkpoint."""

    def __init__(self, storage: Storage, turn: int) -> None:
        """Made by `take`; beats from now on."""
        self._storage, self._turn = storage, turn
        self._beat = 0
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._keep_beating, daemon=True)
        self._heart.start()

    @classmethod
    def take(
        cls,
        location: Location,
        name: str,
        patience: float = _PATIENCE,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Lease:
        """Take the next turn; `CheckpointError` names the holder if there is one."""
        storage = storage_at(location)
        try:
            return cls._taken(storage, name, patience, sleep)
        except OSError as error:
            raise CheckpointError(
                f"{storage.shown('')} cannot be written to: {error.strerror or error}. Give a "
                "checkpoint in a folder that can be, or make room there."
            ) from error

    @classmethod
    def _taken(
        cls, storage: Storage, name: str, patience: float, sleep: Callable[[float], None]
    ) -> Lease:
        if isinstance(storage.path, Path):
            (storage.path / _FOLDER).mkdir(parents=True, exist_ok=True)
        last = _last(storage)
        _wait_for_end(storage, last, patience, sleep)
        turn = last.number + 1
        _wait_for_claims(storage, turn, patience, sleep)
        writer = uuid4().hex
        data = json.dumps({"format": _FORMAT, "writer": writer, "name": name, **_myself()})
        try:
            storage.publish(f"{_FOLDER}/{turn:08d}.json", data.encode(), writer)
        except (FileExistsError, FileNotFoundError):
            # Another was first, and has cleaned up.
            raise _in_use(storage, turn) from None
        reached("lease.taken")
        # A listing may miss files that come and go meanwhile; so it may have been an old turn.
        newest = _last(storage).number
        _remove_before(storage, newest)
        if newest > turn:
            raise _in_use(storage, newest)
        return cls(storage, turn)

    def check(self) -> None:
        """Raise `CheckpointError` if another pipeline has taken over meanwhile."""
        last = _last(self._storage).number
        if last > self._turn:
            raise _in_use(self._storage, last)

    def release(self) -> None:
        """End the turn; the next pipeline need not wait."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._heart.join()
        # If the disk is full or gone, the next pipeline finds that this process has ended.
        with contextlib.suppress(OSError):
            self._storage.write(f"{_FOLDER}/{self._turn:08d}.released", b"")
            reached("lease.released")
            self._storage.remove([self._beat_name(self._beat)])

    def _keep_beating(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            with contextlib.suppress(OSError):
                if _last(self._storage).number > self._turn:
                    return
                self._storage.write(self._beat_name(self._beat + 1), b"")
                reached("lease.beaten")
                self._storage.remove([self._beat_name(self._beat)])
            self._beat += 1

    def _beat_name(self, beat: int) -> str:
        return f"{_FOLDER}/{self._turn:08d}.beat.{beat:08d}"


def is_held(location: Location) -> bool | None:
    """Whether a pipeline holds the lease now; None if its process cannot be seen from here."""
    storage = storage_at(location)
    last = _last(storage)
    if last.number < 0 or last.is_released:
        return False
    return _is_alive(_holder(storage, last.number))


def check_free(location: Location) -> None:
    """Raise `CheckpointError` if a process of this machine holds the lease now.

    It only looks, and waits for nobody: whoever goes on must still take the lease.
    """
    storage = storage_at(location)
    # What is wrong with the folder, `take` says.
    with contextlib.suppress(OSError):
        last = _last(storage)
        if last.number >= 0 and not last.is_released and _is_alive(_holder(storage, last.number)):
            raise _in_use(storage, last.number)


class _Turn(NamedTuple):
    """The last turn, as one listing of the folder shows it."""

    number: int
    """-1 before the first."""
    beat: int
    is_released: bool


def _last(storage: Storage) -> _Turn:
    names = (entry.name for entry in storage.entries(_FOLDER))
    found = [match for match in map(_NAME.fullmatch, names) if match is not None]
    number = max((int(match[1]) for match in found if match[2] == "json"), default=-1)
    marks = [match for match in found if int(match[1]) == number]
    beat = max((int(match[3]) for match in marks if match[3]), default=0)
    return _Turn(number, beat, any(match[2] == "released" for match in marks))


def _remove_before(storage: Storage, turn: int) -> None:
    """Remove the files of earlier turns, and what pipelines left that died while they took one."""
    names = [entry.name for entry in storage.entries(_FOLDER)]
    turns = {name: name.partition(".")[0] for name in names}
    old = [name for name, of in turns.items() if of.isdigit() and int(of) < turn]
    old += [name for name in names if name.startswith(".tmp")]
    storage.remove(f"{_FOLDER}/{name}" for name in old)


def _wait_for_claims(
    storage: Storage, turn: int, patience: float, sleep: Callable[[float], None]
) -> None:
    """On an object store: remove what a pipeline left that died while it took this turn."""

    def claims() -> list[str]:
        names = [entry.name for entry in storage.entries(_FOLDER)]
        return sorted(name for name in names if name.startswith(f"{turn:08d}."))

    found, waited = claims(), 0.0
    while found and waited < patience:
        if f"{turn:08d}.json" in found or claims() != found:
            raise _in_use(storage, turn)
        sleep(_LOOK_SECONDS)
        waited += _LOOK_SECONDS
    storage.remove(f"{_FOLDER}/{name}" for name in found)


def _wait_for_end(
    storage: Storage, last: _Turn, patience: float, sleep: Callable[[float], None]
) -> None:
    """Return when the holder of the last turn is known to have ended; raise if it lives."""
    if last.number < 0 or last.is_released:
        return
    alive = _is_alive(_holder(storage, last.number))
    if alive:
        raise _in_use(storage, last.number)
    waited = 0.0 if alive is None else patience
    while waited < patience:
        sleep(_LOOK_SECONDS)
        waited += _LOOK_SECONDS
        now = _last(storage)
        if now.number == last.number and now.is_released:
            return
        if now != last:
            raise _in_use(storage, now.number)


def _in_use(storage: Storage, turn: int) -> CheckpointError:
    holder = _holder(storage, turn)
    known = "another pipeline"
    if holder:
        known = (
            f"the pipeline {holder.get('name')} (process {holder.get('pid')} on "
            f"{holder.get('host')}, since {holder.get('since')})"
        )
    return CheckpointError(
        f"{storage.shown('')} is in use by {known}. Stop that one, or give this pipeline a "
        "checkpoint of its own."
    )


def _holder(storage: Storage, turn: int) -> Mapping[str, Any]:
    """Who holds the turn; empty if that cannot be read."""
    try:
        found = json.loads(storage.read(f"{_FOLDER}/{turn:08d}.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _myself() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "machine": _machine(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _is_alive(holder: Mapping[str, Any]) -> bool | None:
    """Whether the holder's process lives; None if it runs where this cannot be seen."""
    machine, pid = _machine(), holder.get("pid")
    if machine is None or holder.get("machine") != machine or not isinstance(pid, int):
        return None
    started = _started(pid)
    return started is not None and started == holder.get("started")


def _machine() -> str | None:
    """This boot of this machine, as processes see each other; None if that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the boot; None if there is no such process.

    A number may be given to another process later, but then with another start.
    """
    try:
        told = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    state, *rest = told.rpartition(")")[2].split()
    # A zombie has ended; only its parent has not noticed yet.
    return None if state == "Z" else int(rest[18])
