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
    def set_reads(self) -> float:
        """Those of them that were looked up several at a time."""

    @property
    def set_bytes(self) -> float:
        """The bytes that these had."""

    @property
    def set_codes(self) -> float:
        """Keys looked for in them."""

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
    def hash_probes(self) -> float:
        """Those of them that were hashed one by one."""

    @property
    def front_probes(self) -> float:
        """Stream tuples looked up in the front stage."""

    @property
    def front_chunks(self) -> float:
        """Chunks of the stream that these came in."""

    @property
    def partition_probes(self) -> float:
        """Partitions, or sets of found rows, joined with waiting tuples."""

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
    seek = factors.partition_read
    sequential = seek if factors.sequential_read is None else factors.sequential_read
    of_a_set = seek if factors.set_read is None else factors.set_read
    byte_of_a_set = factors.byte_read if factors.set_byte is None else factors.set_byte
    sought = counted.partitions_read - counted.sequential_reads - counted.set_reads
    return {
        "partition_read": seek * sought,
        "sequential_read": sequential * counted.sequential_reads,
        "set_read": of_a_set * counted.set_reads,
        "set_byte": byte_of_a_set * counted.set_bytes,
        "set_code": factors.set_code * counted.set_codes,
        "page_read": factors.page_read * counted.pages_read,
        "byte_read": factors.byte_read * (counted.bytes_read - counted.set_bytes),
        "index_page_read": factors.index_page_read * counted.index_pages_read,
        "probe": factors.probe * counted.probes,
        "hash_probe": factors.hash_probe * counted.hash_probes,
        "front_probe": factors.front_probe * counted.front_probes,
        "front_chunk": factors.front_chunk * counted.front_chunks,
        "partition_probe": factors.partition_probe * counted.partition_probes,
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
