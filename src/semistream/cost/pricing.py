"""Pricing: operations that were counted, or are expected, times what each of them costs.

A *priced* rate is that of a run on the disk and the CPU that the factors describe. It depends on
the counters alone, so it comes out the same on any machine.
"""

from __future__ import annotations

from typing import Protocol

from semistream.cost.factors import CostFactors
from semistream.metrics import Metrics


class Counted(Protocol):
    """Operations by kind: `Metrics` of a run, a `Recorder` while it goes on, or a prediction."""

    @property
    def partitions_read(self) -> float:
        """Runs of pages that were read at once."""

    @property
    def sequential_reads(self) -> float:
        """Those of them that began where the one before had ended."""

    @property
    def pages_read(self) -> float:
        """Pages of R."""

    @property
    def bytes_read(self) -> float:
        """Bytes of R."""

    @property
    def index_pages_read(self) -> float:
        """Pages of the locator."""

    @property
    def probes(self) -> float:
        """Master rows, or INLJ's tuples, looked for among the others."""

    @property
    def front_probes(self) -> float:
        """Stream tuples looked up in the front stage."""

    @property
    def appends(self) -> float:
        """Stream tuples that began to wait."""

    @property
    def deletes(self) -> float:
        """Stream tuples that ceased to wait."""

    @property
    def outputs(self) -> float:
        """Result rows."""

    @property
    def stream_reads(self) -> float:
        """Stream tuples read."""

    @property
    def iterations(self) -> float:
        """Steps of the algorithm."""

    @property
    def shed(self) -> float:
        """Stream tuples put off to disk."""

    @property
    def returned(self) -> float:
        """Those of them that came back."""


def priced_parts(counted: Counted, factors: CostFactors) -> dict[str, float]:
    """Seconds by kind of operation, under the names of the factors."""
    sequential = factors.sequential_read
    if sequential is None:
        sequential = factors.partition_read
    sought = counted.partitions_read - counted.sequential_reads
    return {
        "partition_read": factors.partition_read * sought,
        "sequential_read": sequential * counted.sequential_reads,
        "page_read": factors.page_read * counted.pages_read,
        "byte_read": factors.byte_read * counted.bytes_read,
        "index_page_read": factors.index_page_read * counted.index_pages_read,
        "probe": factors.probe * counted.probes,
        "front_probe": factors.front_probe * counted.front_probes,
        "append": factors.append * counted.appends,
        "delete": factors.delete * counted.deletes,
        "output": factors.output * counted.outputs,
        "stream_read": factors.stream_read * counted.stream_reads,
        "iteration": factors.iteration * counted.iterations,
        "shed": factors.shed * (counted.shed + counted.returned),
    }


def priced_seconds(counted: Counted, factors: CostFactors) -> float:
    """How long what was counted takes at these prices."""
    return sum(priced_parts(counted, factors).values())


def priced_rate(metrics: Metrics, factors: CostFactors) -> float:
    """Stream tuples finished per priced second; 0 if nothing took any time."""
    seconds = priced_seconds(metrics, factors)
    return (metrics.joined + metrics.unmatched) / seconds if seconds > 0 else 0.0
