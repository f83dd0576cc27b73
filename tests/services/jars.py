"""Jars that Maven resolves, kept in the user's cache: the broker, and connectors as files.

Spark can resolve a connector itself. Not every mirror has each module of a release, though: the
poms beside this file name modules one by one.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.services.service import ServiceError, program


def jars(name: str) -> Path:
    """The folder with the jars that `NAME.pom.xml` asks for, filled when it is first needed."""
    pom = Path(__file__).with_name(f"{name}.pom.xml")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "semistream-tests" / name
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        order = [program("mvn"), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        done = subprocess.run(
            [*order, f"-DoutputDirectory={folder}"], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ServiceError(f"Maven could not resolve {pom.name}: {done.stdout[-2000:]}")
        (folder / "complete").touch()
    return folder


def jar_files(name: str) -> str:
    """The same as Spark's setting `spark.jars` takes it."""
    return ",".join(str(path) for path in sorted(jars(name).glob("*.jar")))
