"""A disk that is really full: builds, updates, joins and shedding go on when there is room again.

Each case has a small filesystem in memory of its own. Where none can be mounted, the size of files
is limited instead, which is another real limit that writes meet half-way.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

import semistream as ss
from semistream.errors import ShedFileError, ShedSpaceError
from semistream.parts.shed_file import ShedFile
from tests.chaos.attack import FINE, LOST, TWICE, UNCLEAR, WRONG, Attack, Verdict
from tests.chaos.storage_faults import Operation, Shop, ended, joined, judged, left_over, tried

ROWS: Final = 40
BALLAST: Final = "ballast"


class SmallDisk:
    """A folder with little room."""

    def __init__(self, folder: Path, is_mounted: bool) -> None:
        self.folder, self._is_mounted = folder, is_mounted

    def fill(self, free: int) -> None:
        """Leave only so many bytes free, or let no file grow beyond that."""
        if not self._is_mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (free, resource.RLIM_INFINITY))
            return
        there = os.statvfs(self.folder)
        room = there.f_bavail * there.f_frsize - free
        if room > 0:
            with contextlib.suppress(OSError), open(self.folder / BALLAST, "wb", 0) as file:
                os.posix_fallocate(file.fileno(), 0, room)

    def empty(self) -> None:
        """There is room again."""
        if not self._is_mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        (self.folder / BALLAST).unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """A filesystem of so many bytes in a new folder, if that can be had."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "chaos", str(folder)]
    is_mounted = shutil.which("mount") is not None and not (
        subprocess.run(command, capture_output=True, check=False).returncode
    )
    disk = SmallDisk(folder, is_mounted)
    try:
        yield disk
    finally:
        disk.empty()
        if is_mounted:
            # Lazily: a killed process may not have let go of it yet.
            subprocess.run(["umount", "-l", str(folder)], check=True)


def _master(rng: random.Random, folder: Path) -> Verdict:
    """A history of steps, each with little room; what is there afterwards must be whole."""
    struck = 0
    with small_disk(folder / "disk", 8 << 20) as disk:
        layout = rng.choice(["key", "given"])
        seed = rng.getrandbits(64)
        shop = Shop(disk.folder / "r", np.random.default_rng(seed), layout)
        for _ in range(5):
            free = rng.randrange(0, 60_000)

            def run(operation: Operation, free: int = free) -> str:
                nonlocal struck
                disk.fill(free)
                try:
                    said = ended(operation.perform, lambda: True)
                finally:
                    disk.empty()
                struck += said == "refused"
                return said

            told = tried(shop, run, f"with {free} bytes free")
            if told != "ok":
                return judged(told)
        ss.MasterTable.open(shop.path).vacuum(keep_versions=1, grace_seconds=-1)
        joined(shop.path, shop.versions, "meshjoin", "unmapped")
        told = left_over(shop.path, max(shop.versions), "a full disk")
    return judged(told) if told != "ok" else Verdict(struck=struck)


def _shed(rng: random.Random, folder: Path) -> Verdict:
    """Shedding to a full disk says so; all that it took comes back, once."""
    struck, number = 0, 0
    kept: list[int] = []
    with small_disk(folder / "disk", 1 << 20) as disk, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            free = rng.randrange(0, 20_000)
            told = _shed_some(disk, free, rng.randint(1, 12), number, kept)
            struck += told == "refused"
            if told not in ("refused", "done"):
                return Verdict(UNCLEAR, told)
            number += 100
        file = ShedFile.recover(disk.folder / "shed")
        found = [n for piece in file.take(len(file)) for n in piece.batch["n"].to_pylist()]
        file.let_go(file.taken)
        file.close()
        left = [path.name for path in (disk.folder / "shed").iterdir()]
    wanted = [n for first in kept for n in range(first * ROWS, (first + 1) * ROWS)]
    kind = LOST if {*wanted} - {*found} else WRONG if {*found} - {*wanted} or left else FINE
    kind = TWICE if len({*found}) < len(found) else kind
    return Verdict(kind, f"{len(found)} of {len(wanted)}, left over {left}", struck)


def _shed_some(disk: SmallDisk, free: int, most: int, number: int, kept: list[int]) -> str:
    said = "done"
    disk.fill(free)
    try:
        file = ShedFile.recover(disk.folder / "shed")
        for one in range(number, number + most):
            file.append(0.0, pa.record_batch({"n": np.arange(one * ROWS, (one + 1) * ROWS)}))
            kept.append(one)
        file.close()
    except (ShedFileError, ShedSpaceError):
        said = "refused"
    except Exception as error:
        said = f"{error!r} with {free} bytes free"
    finally:
        disk.empty()
    # As at the end of a process, which lets go of the folder.
    with contextlib.suppress(Exception):
        file.close()
    return said


_CASES: Final[tuple[Callable[[random.Random, Path], Verdict], ...]] = (_master, _shed)


def _case(rng: random.Random, folder: Path) -> Verdict:
    return rng.choice(_CASES)(rng, folder)


ATTACK: Final = Attack("a disk that is full", _case)
