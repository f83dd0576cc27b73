"""A standalone cluster of Spark on loopback: a master and workers, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pyspark

from tests.recovery.conftest import Process

_HOME: Final = Path(pyspark.__file__).parent
_WAIT: Final = 120.0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Cluster:
    """A master and its workers; `close` ends all of them."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        """Start the master and the workers; files go to the folder."""
        self._folder, self._port = folder, free_port()
        self._started: list[subprocess.Popen[bytes]] = []
        self._spawn("master.Master", "--port", str(self._port), "--webui-port", "0")
        self._wait()
        self._workers = [self._worker() for _ in range(workers)]

    @property
    def url(self) -> str:
        """What a driver connects to."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def workers(self) -> list[Process]:
        """The standalone workers."""
        found = [Process.of(one.pid) for one in self._workers]
        return [process for process in found if process is not None]

    def replace(self, dead: Process) -> None:
        """Start another worker in place of one that was killed."""
        self._workers = [one for one in self._workers if one.pid != dead.pid]
        self._workers.append(self._worker())

    def close(self) -> None:
        """End all processes that were started here, and those that they have started."""
        for one in self._started:
            process = Process.of(one.pid)
            for victim in (*(process.below() if process else ()), *([process] if process else ())):
                victim.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(10)

    def _worker(self) -> subprocess.Popen[bytes]:
        more = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
        return self._spawn("worker.Worker", *more, "-d", str(self._folder / "work"), self.url)

    def _spawn(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        with open(self._folder / "cluster.log", "ab") as log:
            one = subprocess.Popen(
                [*command, "--host", "127.0.0.1", *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._folder,
            )
        self._started.append(one)
        return one

    def _wait(self) -> None:
        """Until the master listens."""
        end = time.monotonic() + _WAIT
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            time.sleep(0.2)
        raise RuntimeError(f"No master at {self.url}: {self._folder / 'cluster.log'}")
