"""Starts the services, runs a command with them, and ends them.

python -m tests.services install               what the machine lacks (Debian's packages, jars)
python -m tests.services run -- COMMAND …      all of them, for one command
python -m tests.services run --only kafka -- COMMAND …
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NoReturn

from tests.services.databases import MariaDB, Postgres
from tests.services.jars import jars
from tests.services.kafka import Kafka
from tests.services.s3 import S3
from tests.services.service import Service, ServiceError

ALL: Final[dict[str, type[Service]]] = {kind.name: kind for kind in (Postgres, MariaDB, Kafka, S3)}
_PACKAGES: Final = {
    "initdb": "postgresql",
    "mariadbd": "mariadb-server",
    "java": "default-jre-headless",
    "mvn": "maven",
}


@contextmanager
def running(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Services in a folder of their own, and the environment that names them; ended at the end."""
    folder = Path(tempfile.mkdtemp(prefix="semistream-services-"))
    folder.chmod(0o755)
    environment: dict[str, str] = {}
    try:
        with ExitStack() as stack:
            for name in names:
                service = ALL[name](folder)
                stack.callback(service.stop)
                service.start()
                environment |= service.environment()
            yield environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def install() -> None:
    """Install what is missing: as root from Debian's packages, else say what to install."""
    places = os.pathsep.join(
        [os.environ["PATH"], "/usr/sbin", *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
    )
    missing = sorted(
        {package for name, package in _PACKAGES.items() if not shutil.which(name, path=places)}
    )
    if missing:
        order = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise ServiceError(
                f"Missing: {', '.join(missing)}. Install with: sudo {' '.join(order)}"
            )
        for step in (["apt-get", "update", "-q"], order):
            _installed(step)
    for name in ("broker", "kafka-connector"):
        jars(name)


def _exit(number: int, _: object) -> NoReturn:
    """Leave as after an error, so that all that was started is ended; once."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _ended(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end, and end it with us; its exit code."""
    with subprocess.Popen(command, env=os.environ | environment) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def _installed(order: Sequence[str]) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(order, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"{' '.join(order)} failed:\n{(done.stderr or done.stdout)[-2000:]}")


def main() -> int:
    """Do what the command line says; a command's exit code is passed on."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.services",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    orders = parser.add_subparsers(dest="order", required=True)
    orders.add_parser("install")
    run = orders.add_parser("run")
    run.add_argument("--only", action="append", choices=sorted(ALL))
    run.add_argument("command", nargs="+")
    asked = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    try:
        if asked.order == "install":
            install()
            return 0
        with running(asked.only or list(ALL)) as environment:
            return _ended(asked.command, environment)
    except ServiceError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
