"""Metrics of a pipeline: a JSON line per batch, and Prometheus' text format.

Both are made from the outcome of a batch, so a line that a crash prevented is written later.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from semistream.relation.storage import Location, local_path
from semistream.spark.pipeline.batch_log import BatchLog, Outcome

__all__ = ["MetricsLog", "append_line", "escaped", "metrics_line", "prometheus_text"]

_ENGINE: Final = (
    "algorithm",
    "hit_ratio",
    "front_hits",
    "in_place_probes",
    "pages_read",
    "bytes_read",
    "service_rate",
    "p99_seconds",
    "peak_memory",
    "budget",
    "tasks",
    "task_seconds",
)
"""What the tasks measure."""
_TAIL: Final = 1 << 16


class MetricsLog:
    """Where a pipeline's metrics go, if anywhere."""

    def __init__(
        self, name: str, lines: Location | None = None, prometheus: Location | None = None
    ) -> None:
        """For the pipeline `name`: a file of JSON lines, and one in Prometheus' format."""
        self._name = name
        self.lines = None if lines is None else _lines_file(local_path(lines, "metrics"), name)
        """The file of JSON lines."""
        self._noted: Path | None = None
        """Says where a file without lines begins; see `_begins_after`."""
        self._prometheus = (
            None if prometheus is None else local_path(prometheus, "metrics_prometheus")
        )

    def append(self, outcome: Outcome) -> None:
        """Write the metrics of a batch that is done."""
        if self.lines is not None:
            append_line(self.lines, {"pipeline": self._name, **metrics_line(outcome)})
            if self._noted is not None:
                self._noted.unlink(missing_ok=True)
                self._noted = None
        if self._prometheus is not None:
            _replace(self._prometheus, prometheus_text(self._name, outcome))

    def catch_up(self, log: BatchLog) -> None:
        """Write the lines that a kill prevented: of batches after the last one in the file.

        A file without lines begins with the next batch, and nothing of those before is written.
        """
        done = -1 if log.last_outcome is None else log.last_outcome.number
        if self.lines is not None:
            last = last_batch(self.lines)
            for outcome in log.outcomes(after=self._begins_after(done) if last is None else last):
                self.append(outcome)
        elif self._prometheus is not None and log.last_outcome is not None:
            self.append(log.last_outcome)

    def _begins_after(self, done: int) -> int:
        """The last batch before the file was first asked for: `done`, unless that is on record.

        It is on record from then on until there is a first line: a kill may come before that.
        """
        assert self.lines is not None
        self._noted = self.lines.with_name(f".{self.lines.name}.begins")
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(self._noted.read_text("utf-8"))
        _replace(self._noted, str(done))
        return done


def _replace(path: Path, text: str) -> None:
    """Write a file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(text, "utf-8")
    unfinished.replace(path)


def _lines_file(path: Path, name: str) -> Path:
    """The file itself, or that of the pipeline in a folder; a new folder has no suffix."""
    is_file = path.is_file() or (path.suffix and not path.is_dir())
    return path if is_file else path / f"{quote(name, safe='')}.jsonl"


def append_line(path: Path, content: dict[str, Any]) -> None:
    """Append a JSON line to a file, in one write, after ending a line that a crash has cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        is_cut = file.tell() > 0 and _last_byte(file.fileno(), file.tell()) != b"\n"
        file.write(b"\n" * is_cut + json.dumps(content).encode() + b"\n")


def last_batch(path: Path) -> int | None:
    """The number of the last batch with a line in the file; None if there is no such line."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        for line in reversed(file.read().splitlines()):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return int(json.loads(line)["batch"])
    return None


def metrics_line(outcome: Outcome) -> dict[str, Any]:
    """A batch's metrics by name; those of the join are None if no task has left any."""
    counts, seconds = outcome.counts, outcome.seconds
    names = ("source", "retried", "returned", "joined", "unmatched", "deferred", "rejected")
    return {
        "batch": outcome.number,
        "stream_batch": outcome.stream_batch,
        "at": _shown(outcome.at),
        "master_version": outcome.version,
        **({"master_versions": dict(outcome.versions)} if outcome.versions else {}),
        **_lag(outcome),
        "arrived": counts.arrived,
        **{name: getattr(counts, name) for name in (*names, "expired", "outputs")},
        "waiting_retry": outcome.waiting_retry,
        "waiting_deferred": outcome.waiting_deferred,
        **({"left_out": outcome.engine["left_out"]} if "left_out" in outcome.engine else {}),
        "batch_seconds": seconds,
        "tuples_per_second": counts.arrived / seconds if seconds > 0 else 0.0,
        "capacity": outcome.capacity,
        **{name: outcome.engine.get(name) for name in _ENGINE},
    }


def _lag(outcome: Outcome) -> dict[str, Any]:
    """How far behind its source the master was when the batch began, if it follows one."""
    if outcome.master_as_of is None:
        return {}
    return {
        "master_as_of": _shown(outcome.master_as_of),
        "master_lag_seconds": max(outcome.at - outcome.master_as_of, 0.0),
    }


def _shown(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def prometheus_text(name: str, outcome: Outcome | None) -> str:
    """Totals since the checkpoint began, and gauges of the last batch."""
    if outcome is None:
        return ""
    line = metrics_line(outcome)
    label = f'{{pipeline="{escaped(name)}"}}'
    text: list[str] = []
    for metric, kind, told, value in _metrics(outcome, line):
        if value is not None:
            full = f"semistream_{metric}"
            text += [f"# HELP {full} {told}", f"# TYPE {full} {kind}"]
            text.append(f"{full}{label} {float(value)!r}")
    if outcome.versions:
        full = "semistream_lookup_master_version"
        told = "The version of a look-up's master in the last batch."
        text += [f"# HELP {full} {told}", f"# TYPE {full} gauge"]
        for lookup, version in outcome.versions.items():
            labels = f'{{pipeline="{escaped(name)}",lookup="{escaped(lookup)}"}}'
            text.append(f"{full}{labels} {float(version)!r}")
    return "\n".join(text) + "\n"


def _metrics(outcome: Outcome, line: dict[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """Each metric's name, kind, explanation and value."""
    totals = outcome.totals
    told = "Stream tuples so far:"
    yield "batches_total", "counter", "Batches that are done.", outcome.number + 1
    yield "arrived_tuples_total", "counter", f"{told} arrived, retried or returned.", totals.arrived
    for name in ("joined", "deferred", "rejected", "retried", "returned", "expired"):
        yield f"{name}_tuples_total", "counter", f"{told} {name}.", getattr(totals, name)
    ended = outcome.ended_unmatched
    yield "unmatched_tuples_total", "counter", f"{told} ended unmatched.", ended
    yield "output_rows_total", "counter", "Rows of joined tuples so far.", totals.outputs
    for name, what in _GAUGES.items():
        yield name, "gauge", what, line.get(_RENAMED.get(name, name))


_GAUGES: Final = {
    "waiting_retry_tuples": "Stream tuples in the retry queue.",
    "waiting_deferred_tuples": "Stream tuples in the deferred queue.",
    "batch_seconds": "Seconds that the last batch took.",
    "master_version": "The master's version in the last batch.",
    "master_lag_seconds": "Seconds that the master was behind its source.",
    "front_stage_hit_ratio": "Tuples answered by the front stage, of those looked for.",
    "pages_read": "Pages of the master read in the last batch.",
    "service_rate": "Tuples finished per second of a task, in the last batch.",
    "processing_p99_seconds": "Processing time that 99 % of the tuples did not pass.",
    "peak_memory_bytes": "The most memory that a task of the last batch held.",
    "memory_budget_bytes": "The memory that a task may hold.",
}
_RENAMED: Final = {
    "waiting_retry_tuples": "waiting_retry",
    "waiting_deferred_tuples": "waiting_deferred",
    "front_stage_hit_ratio": "hit_ratio",
    "processing_p99_seconds": "p99_seconds",
    "peak_memory_bytes": "peak_memory",
    "memory_budget_bytes": "budget",
}


def escaped(text: str) -> str:
    """A value of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _last_byte(descriptor: int, size: int) -> bytes:
    return os.pread(descriptor, 1, size - 1)
