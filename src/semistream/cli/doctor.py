"""`semistream doctor`: whether this machine has what joins on Spark need, and what to do if not."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from semistream.cli.compiling import compile_kernels
from semistream.cli.getting_java import get_java
from semistream.cli.report import MIB, output

__all__ = ["Finding", "doctor", "findings"]

GOOD: Final = "good"
NOTE: Final = "note"
BAD: Final = "bad"
_SIGNS: Final = {GOOD: "[green]good[/]", NOTE: "[yellow]note[/]", BAD: "[red]bad[/]"}
_LEAST_MEMORY: Final = 3 << 30
"""A Java process of 2 GB, and workers."""
_LEAST_DISK: Final = 2 << 30
_LEAST_FILES: Final = 1024


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, what was found, and what to do."""

    what: str
    verdict: str
    found: str
    advice: str = ""


def doctor(
    mend: Annotated[
        bool, typer.Option("--mend", help="Get what is missing: Java, and compiled kernels.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Check Java, Spark, connectors, memory, disk and kernels on this machine."""
    if mend:
        get_java()
        compile_kernels()
        return
    found = findings()
    if as_json:
        for one in found:
            typer.echo(json.dumps(asdict(one)))
    else:
        table = Table("", "", "found", "what to do", box=None, pad_edge=False)
        for one in found:
            table.add_row(one.what, _SIGNS[one.verdict], escape(one.found), escape(one.advice))
        output().print(table)
    if any(one.verdict == BAD for one in found):
        raise typer.Exit(1)


def findings() -> list[Finding]:
    """All checks, in order; a check that fails itself is a finding too."""
    checks: list[Callable[[], list[Finding]]] = [
        _python,
        _java,
        _spark,
        _memory,
        _disk,
        _files,
        _kernels,
    ]
    found = []
    for check in checks:
        try:
            found += check()
        except Exception as error:  # Whatever it is, the other checks are still of use.
            found.append(
                Finding(check.__name__.strip("_"), BAD, f"{type(error).__name__}: {error}")
            )
    return found


def _python() -> list[Finding]:
    import numba
    import pyarrow

    from semistream import __version__

    versions = f"Python {sys.version.split()[0]}, pyarrow {pyarrow.__version__}"
    return [Finding("semistream", GOOD, f"{__version__} on {versions}, numba {numba.__version__}")]


def _java() -> list[Finding]:
    from semistream.errors import JavaError
    from semistream.spark.java import check_java, check_modules

    try:
        said = check_java()
        check_modules()
        return [Finding("Java", GOOD, said)]
    except JavaError as error:
        return [Finding("Java", BAD, "not usable", str(error))]


def _spark() -> list[Finding]:
    import pyspark

    from semistream.spark.connectors import CONNECTORS

    fits = [name for name, one in CONNECTORS.items() if one.fits(pyspark.__version__)]
    lacks = [name for name in CONNECTORS if name not in fits]
    advice = ""
    if lacks:
        others = [f"{name}: pyspark=={max(CONNECTORS[name].packages)}.*" for name in lacks]
        advice = f"For others install another Spark ({'; '.join(others)})."
    return [
        _spark_itself(pyspark.__version__),
        Finding("connectors", NOTE if lacks else GOOD, f"fit: {', '.join(fits)}", advice),
    ]


def _spark_itself(version: str) -> Finding:
    from semistream.errors import OptionError
    from semistream.spark.source import check_streaming

    found = f"pyspark {version}"
    home = os.environ.get("SPARK_HOME")
    if not version.startswith("4."):
        return Finding("Spark", BAD, found, "pip install 'pyspark==4.2.*': 4.0 to 4.3 work.")
    if home and not list(Path(home).glob(f"jars/spark-core_*-{version}.jar")):
        advice = "Its jars are of another version: unset SPARK_HOME."
        return Finding("Spark", BAD, f"{found}, but SPARK_HOME is {home}", advice)
    try:
        check_streaming()
    except OptionError as error:
        return Finding("Spark", NOTE, found, str(error))
    return Finding("Spark", GOOD, found)


def _memory() -> list[Finding]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = min(total, *_container_limits(), total)
    said = f"{limit / (1 << 30):.1f} GB" + (" (limit of the container)" if limit < total else "")
    if limit < _LEAST_MEMORY:
        advice = "Give Java less: local_session(memory='1g'), and each task less memory."
        return [Finding("memory", NOTE, said, advice)]
    return [Finding("memory", GOOD, said)]


def _container_limits() -> list[int]:
    limits = []
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = Path(name)
        text = path.read_text().strip() if path.is_file() else "max"
        if text.isdigit():
            limits.append(int(text))
    return limits


def _disk() -> list[Finding]:
    found = []
    for what, folder in (("temporary files", tempfile.gettempdir()), ("this folder", os.getcwd())):
        free = shutil.disk_usage(folder).free
        direct = "direct I/O works" if _reads_directly(Path(folder)) else "no direct I/O"
        enough = free >= _LEAST_DISK
        advice = "" if enough else "Make room, or name another folder in TMPDIR."
        said = f"{folder}: {free / MIB / 1024:.1f} GB free, {direct}"
        found.append(Finding(what, GOOD if enough else NOTE, said, advice))
    return found


def _reads_directly(folder: Path) -> bool:
    """Whether files there can be read past the page cache, as io="direct" does."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            os.close(os.open(file.name, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def _files() -> list[Finding]:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _LEAST_FILES:
        return [Finding("open files", NOTE, f"at most {soft}", f"ulimit -n {_LEAST_FILES}")]
    return [Finding("open files", GOOD, f"at most {soft}")]


def _kernels() -> list[Finding]:
    from semistream.kernels.chains import probe
    from semistream.kernels.compiling import kept

    folder = Path(kept(probe))
    count = len(list(folder.glob("*.nbc")))
    if not os.access(folder, os.W_OK):
        advice = "Name a folder that can be written in NUMBA_CACHE_DIR."
        return [Finding("kernels", NOTE, f"{count} in {folder}, which is read only", advice)]
    if not count:
        advice = "semistream compile saves the first join some ten seconds."
        return [Finding("kernels", NOTE, "none compiled yet", advice)]
    return [Finding("kernels", GOOD, f"{count} compiled, in {folder}")]
