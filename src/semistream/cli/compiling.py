"""`semistream compile`: compile the kernels now, so that the first join does not wait for it.

It runs `small_joins` in two processes side by side: one looks rows up where the operating system
holds them, the other reads pages. What both need, the one that comes first compiles.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from semistream.cli.report import output, reported, side

__all__ = ["are_compiled", "compile_kernels", "compiled_meanwhile"]

_LOOK_SECONDS: Final = 0.1
_IO_MODES: Final = ("buffered", "unmapped")
_KEYS: Final = ("integer", "string")


def compile_kernels() -> None:
    """Compile what joins need, for this machine; later processes load it from disk."""
    console = side()
    with reported(console):
        # A plain line too: where there is no terminal, the display below shows nothing.
        console.print("Compiling for this machine: some ten seconds, once.", style="dim")
        with compiled_meanwhile(console, _KEYS) as kernels:
            pass
        output().print(f"Compiled {len(kernels)} kernels.")


def are_compiled() -> bool:
    """Whether kernels have been compiled on this machine before."""
    from semistream.kernels.chains import probe
    from semistream.kernels.compiling import kept

    return any(Path(kept(probe)).glob("*.nbc"))


class _Child:
    """A process that compiles, and the kernels that it says it has compiled."""

    def __init__(self, io: str, keys: tuple[str, ...]) -> None:
        """Starts it."""
        command = [sys.executable, "-m", "semistream.cli.small_joins", io, *keys]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.kernels: list[str] = []
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.kernels.append(line.strip())

    def ends_within(self, seconds: float) -> bool:
        """Wait so long for it; an error if it failed."""
        self._reader.join(seconds)
        if self._reader.is_alive():
            return False
        if self._process.wait() != 0:
            raise subprocess.CalledProcessError(self._process.returncode, self._process.args)
        return True

    def close(self) -> None:
        """End it, if it still runs."""
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def compiled_meanwhile(console: Console, keys: tuple[str, ...]) -> Iterator[list[str]]:
    """Compile in other processes while the body runs; then wait, and show how far they are.

    Yields a list that has the names of all compiled kernels in the end.
    """
    names: list[str] = []
    with ExitStack() as ends:
        children = [_Child(io, keys) for io in _IO_MODES]
        for child in children:
            ends.callback(child.close)
        yield names
        with console.status("Compiling kernels") as status:
            for child in children:
                while not child.ends_within(_LOOK_SECONDS):
                    count = sum(len(each.kernels) for each in children)
                    status.update(f"Compiling kernels: {count} so far")
        names += (name for child in children for name in child.kernels)
