"""What the services have in common: a folder, a port, processes that are ended by their ids."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

LOOPBACK: Final = "127.0.0.1"
_PATIENCE: Final = 90.0
"""Seconds that a service may take to start."""


class ServiceError(Exception):
    """A service is missing, did not start, or did not end."""


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def program(name: str, *folders: str) -> str:
    """The path of a program, also in folders that are not on the PATH."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    found = shutil.which(name, path=path)
    if found is None:
        raise ServiceError(
            f"{name} was not found. Install it with: python -m tests.services install"
        )
    return found


class Service(ABC):
    """One server process with its files in a folder of its own."""

    name: str
    user: str | None = None
    """Who runs it if we are root: most database servers refuse to run as root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / self.name
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def prepare(self) -> None:
        """Make the files that the server needs before its first start."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The server, in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """What a test needs to know, as variables of the environment."""

    @property
    def pid(self) -> int:
        """The process to end, or to kill in a test."""
        if self._process is None:
            raise ServiceError(f"{self.name} does not run.")
        return self._process.pid

    def start(self) -> None:
        """Start it, anew after a kill too, and wait until it serves."""
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            self._give_away(self.folder)
            self.prepare()
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, start_new_session=True, **self._as_user()
            )
        wait_until(self._serves, f"{self.name} did not start; its log is {self.folder / 'log'}")

    def stop(self) -> None:
        """End it, gently first."""
        if self._process is None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                self._process.send_signal(sign)
                try:
                    self._process.wait(20)
                except subprocess.TimeoutExpired:
                    continue
        self._process = None

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def run(self, *command: str) -> str:
        """Run a program as the service's user, and return what it prints."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, capture_output=True, text=True, check=False, **self._as_user()
        )
        if done.returncode != 0:
            raise ServiceError(f"{' '.join(command)} failed: {done.stderr or done.stdout}")
        return done.stdout

    def _serves(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise ServiceError(
                f"{self.name} ended with {self._process.returncode}; its log is "
                f"{self.folder / 'log'}:\n{(self.folder / 'log').read_text()[-2000:]}"
            )
        return self.answers()

    def _as_user(self) -> dict[str, Any]:
        return {"user": self.user, "cwd": "/"} if self.user and os.geteuid() == 0 else {"cwd": "/"}

    def _give_away(self, folder: Path) -> None:
        if self.user and os.geteuid() == 0:
            entry = pwd.getpwnam(self.user)
            os.chown(folder, entry.pw_uid, entry.pw_gid)


def wait_until(true: Callable[[], bool], otherwise: str, patience: float = _PATIENCE) -> None:
    """Wait until a condition holds, or raise what is said."""
    end = time.monotonic() + patience
    while not true():
        if time.monotonic() > end:
            raise ServiceError(f"{otherwise} (waited {patience:.0f} s).")
        time.sleep(0.1)


def listens(port: int) -> bool:
    """Whether somebody accepts connections on a port."""
    try:
        with socket.create_connection((LOOPBACK, port), 1.0):
            return True
    except OSError:
        return False
