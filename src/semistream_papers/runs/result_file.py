"""Results as JSON lines: what ran, where, with which versions, and what came out.

Lines are only ever appended, one per run, and a setting that has a line is not run again. So a
reproduction that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from semistream_papers.runs.setting import Setting

__all__ = ["ResultFile"]

_PACKAGES = ("numpy", "numba", "pyarrow")


class ResultFile:
    """The results of one timing and scale."""

    def __init__(self, path: Path) -> None:
        """Read what is there; the half line that a killed process may leave is skipped."""
        self.path = path
        self._lines: dict[str, dict[str, Any]] = {}
        if path.exists():
            for text in path.read_text("utf-8").splitlines():
                try:
                    line = json.loads(text)
                except json.JSONDecodeError:
                    continue
                self._lines[line["key"]] = line

    def __len__(self) -> int:
        return len(self._lines)

    def find(self, key: str) -> dict[str, Any] | None:
        """The result of a setting, if it has been run."""
        line = self._lines.get(key)
        return None if line is None else line["result"]

    def add(self, setting: Setting, timing: str, result: Mapping[str, Any]) -> None:
        """Append a result with all that is needed to run it again."""
        line = {
            "key": setting.key(timing),
            "timing": timing,
            "setting": asdict(setting),
            "result": dict(result),
            **_provenance(),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begun = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if begun else "") + json.dumps(line, ensure_ascii=False) + "\n")
        self._lines[line["key"]] = line

    def values(self, name: str) -> set[str]:
        """The different values of a field in all lines, as text."""
        return {str(line.get(name)) for line in self._lines.values()}


@lru_cache(maxsize=1)
def _provenance() -> dict[str, Any]:
    """The code, the versions and the machine of this process."""
    from semistream import __version__

    return {
        "commit": _commit(),
        "versions": {"semistream": __version__, "python": platform.python_version()}
        | {name: version(name) for name in _PACKAGES},
        "machine": {"cpu": _cpu(), "cores": os.cpu_count()},
    }


def _commit() -> str:
    """The commit of the code that runs, marked if it was changed since; "" outside a clone."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return ended.stdout.strip()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "")
