"""The Java that Spark starts: which it is, whether it will do, and how to get one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from semistream.errors import JavaError

__all__ = ["check_java", "check_modules", "install_command", "java_path"]

_OLDEST: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_MODULE: Final = "jdk.incubator.vector"
"""Spark asks for it, and does not start without it; small runtimes often lack it."""
_RELEASES: Final = (21, 17, 25)
"""The Javas to take from a distribution, the best one first."""
_MANAGERS: Final = {
    "apt-get": ("apt-get install -y", "apt-cache show", "openjdk-{}-jre-headless"),
    "dnf": ("dnf install -y", "dnf info", "java-{}-openjdk-headless"),
    "zypper": ("zypper --non-interactive install", "zypper info", "java-{}-openjdk-headless"),
    "pacman": ("pacman -S --noconfirm", "pacman -Si", "jre{}-openjdk-headless"),
    "apk": ("apk add", "apk info", "openjdk{}-jre-headless"),
    "brew": ("brew install", "brew info", "openjdk@{}"),
}
"""Package managers: how each installs, how it is asked for a package, and how Java is called."""


def install_command() -> str | None:
    """The command that installs Java on this system, without `sudo`; None if it is not known."""
    for manager, (install, ask, name) in _MANAGERS.items():
        if shutil.which(manager):
            has = (one for one in _RELEASES if _answers(f"{ask} {name.format(one)}"))
            return f"{install} {name.format(next(has, _RELEASES[0]))}"
    return None


def _answers(command: str) -> bool:
    try:
        done = subprocess.run(command.split(), capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    # Of a package that others name but nobody has, apt-cache says nothing, and is content.
    return done.returncode == 0 and bool(done.stdout.strip())


def advice() -> str:
    """What to do about a Java that is missing or does not fit."""
    command = install_command()
    by = "" if command is None else f", for example with: sudo {command}"
    return (
        f"Spark needs Java {_OLDEST} or newer: install one{by}; and put it on the PATH or name its "
        "directory in JAVA_HOME."
    )


def check_java() -> str:
    """What the Java that Spark would start says of itself; `JavaError` if it is missing or old."""
    java = java_path()
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaError(f"{java} does not start: {error}. {advice()}") from error
    found = _VERSION.search(answer.stderr + answer.stdout)
    said = (answer.stderr or answer.stdout).strip().partition("\n")[0]
    if found is None or int(found[1]) < _OLDEST:
        raise JavaError(f"{java} says it is {said!r}, which is too old or not known. {advice()}")
    return said


def check_modules() -> None:
    """`JavaError` if this Java lacks a module that Spark asks for."""
    java = java_path()
    listed = subprocess.run(
        [java, "--list-modules"], capture_output=True, text=True, check=False, timeout=60
    )
    if listed.returncode == 0 and f"{_MODULE}@" not in listed.stdout:
        raise JavaError(f"{java} lacks the module {_MODULE}, so Spark does not start. {advice()}")


def java_path() -> str:
    """The java that Spark's own scripts would choose."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise JavaError(f"JAVA_HOME is {home}, but there is no {java}. {advice()}")
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise JavaError(f"No java is on the PATH, and JAVA_HOME is not set. {advice()}")
    return found
