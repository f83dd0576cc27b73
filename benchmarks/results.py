"""Raw results: JSON lines that say what ran, where, and with which versions."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa


def machine(version: str) -> dict[str, Any]:
    """The machine and the versions that a figure depends on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "semistream": version,
        "pyarrow": pa.__version__,
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def write_results(
    path: Path, lines: Iterable[Mapping[str, Any]], where: Mapping[str, Any], append: bool = False
) -> None:
    """Replace the file by these results, or append them, each with the machine and the time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with path.open("a" if append else "w") as file:
        for line in lines:
            file.write(json.dumps(dict(line) | {"machine": dict(where), "at": at}) + "\n")
    print(f"written: {path.name}")
