"""`/metrics`: what a pipeline's `metrics_prometheus` has, what only the page knows, and aliases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from semistream.page.status import Watched
from semistream.spark.pipeline.metrics_log import escaped, prometheus_text

__all__ = ["metrics_text"]

_CACHE: Final = {
    "hitCount": ("counter", "Tuples answered from memory; Flink's name."),
    "missCount": ("counter", "Tuples for which the disk was asked; Flink's name."),
    "loadCount": ("counter", "Pages of the master that were read; Flink's name."),
    "numCachedBytes": ("gauge", "Bytes of the front stage of a task; Flink's name."),
}


def metrics_text(watched: Watched) -> str:
    """In Prometheus' text format."""
    status = watched.status(points=1)
    label = f'{{pipeline="{escaped(status["name"])}"}}'
    text = [prometheus_text(status["name"], watched.batches.outcome).rstrip("\n")]
    for name, kind, told, value in _more(status):
        if value is not None:
            full = f"semistream_{name}"
            text += [f"# HELP {full} {told}", f"# TYPE {full} {kind}"]
            text.append(f"{full}{label} {float(value)!r}")
    return "\n".join(line for line in text if line) + "\n"


def _more(status: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    recent, lag = status["recent"], status["lag"]
    of_late = "over the last batches."
    yield "up", "gauge", "1 if the pipeline runs.", status["state"] == "running"
    yield (
        "arrival_rate",
        "gauge",
        f"Tuples of the source per second, {of_late}",
        recent["arrival_rate"],
    )
    yield "batch_rate", "gauge", f"Tuples per second of a batch, {of_late}", recent["service_rate"]
    yield (
        "busy_ratio",
        "gauge",
        f"The share of the time that batches took, {of_late}",
        recent["busy"],
    )
    told = "How long the oldest tuple of a batch waits to be written."
    yield "tuple_lag_seconds", "gauge", told, lag["tuple_seconds"]
    yield "quiet_seconds", "gauge", "Seconds since the last batch ended.", lag["quiet_seconds"]
    told = "Versions of a master that no batch has had yet."
    yield "master_versions_behind", "gauge", told, lag["versions_behind"]
    ages = [one["age_seconds"] for one in status["masters"] if one["age_seconds"] is not None]
    yield "master_age_seconds", "gauge", "The age of the oldest master.", max(ages, default=None)
    told = "Seconds of work that wait in the deferred queue."
    yield "catch_up_seconds", "gauge", told, status["queues"]["catch_up_seconds"]
    warnings = [one for one in status["warnings"] if one["level"] != "note"]
    yield "warnings", "gauge", "Warnings and errors on the page.", len(warnings)
    for name, (kind, told) in _CACHE.items():
        yield name, kind, told, status["cache"][name]
