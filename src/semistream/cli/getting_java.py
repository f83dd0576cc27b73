"""Get Java by the package manager of the system, where that is allowed; else say the command."""

from __future__ import annotations

import os
import shutil
import subprocess

import typer

from semistream.cli.report import complain, output, side
from semistream.errors import JavaError

__all__ = ["get_java"]


def get_java() -> None:
    """Install Java if there is none that Spark can use; says what it does."""
    from semistream.spark.java import check_java, check_modules, install_command

    out = output()
    try:
        said = check_java()
        check_modules()
    except JavaError as error:
        rights, command = _rights(), install_command()
        if rights is not None and command is not None and command.startswith("apt-get"):
            # A fresh container has no lists of packages yet.
            _run([*rights, "apt-get", "update"])
            command = install_command()
        if command is None or rights is None:
            complain(side(), str(error))
            raise typer.Exit(1) from None
        out.print(f"{str(error).partition('. ')[0]}.", soft_wrap=True)
        _run([*rights, *command.split()])
        said = _found()
    out.print(f"Java: {said}", soft_wrap=True)


def _rights() -> list[str] | None:
    """What must stand before a command that installs; None if this user may not."""
    if os.geteuid() == 0 or shutil.which("brew"):
        return []
    if shutil.which("sudo") is None:
        return None
    # Only if no password is asked for: nobody may be there to type it.
    asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    return ["sudo", "-n"] if asked.returncode == 0 else None


def _run(command: list[str]) -> None:
    output().print(f"$ {' '.join(command)}", style="bold", soft_wrap=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        complain(side(), f"That failed: {(done.stderr or done.stdout)[-500:]}")
        raise typer.Exit(1)


def _found() -> str:
    from semistream.spark.java import check_java, check_modules

    try:
        said = check_java()
        check_modules()
    except JavaError as error:
        complain(side(), f"Java was installed, but: {error}")
        raise typer.Exit(1) from None
    return said
