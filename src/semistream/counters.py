"""The table of counters: what a join counts, what that means, and which cost factor prices it.

Everything else follows from this table. A run counts with a `Recorder` and shows `Metrics`, a
prediction has the same counters per stream tuple, and pricing and calibration go by the factors.
A new counter is a row here and the line that counts. If it is to cost something, its factor is also
a field of `CostFactors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

__all__ = ["FACTORS", "PRICES", "Counted", "Counters", "Price", "operations"]

Number = TypeVar("Number", bound=float)


def _counter(factor: str = "", *, instead_of: str = "") -> Any:
    """A counter that starts at 0; without a `factor` it costs nothing.

    What is counted a second time, because it is done in a cheaper way, costs its own factor
    `instead_of` the usual one.
    """
    return field(default=0, metadata={"factor": factor, "instead_of": instead_of})


@dataclass(kw_only=True)
class Counters(Generic[Number]):
    """All counters: whole numbers for a run, fractions for the average of a stream tuple."""

    arrived: Number = _counter()
    """Stream tuples that came."""
    joined: Number = _counter()
    """Stream tuples that are done and had at least one match."""
    unmatched: Number = _counter()
    """Stream tuples that are done and had none."""
    left_out: Number = _counter()
    """Stream tuples that are not in the sample, and so were not joined."""
    filtered: Number = _counter()
    """Those of `unmatched` that the membership filter kept from waiting."""
    front_hits: Number = _counter("front_hit")
    """Stream tuples that the front stage answered."""
    matches: Number = _counter()
    """Pairs that reads of R gave; those of the front stage are not among them."""
    partitions_read: Number = _counter("partition_read")
    """Runs of pages that were read at once."""
    sequential_reads: Number = _counter("sequential_read", instead_of="partition_read")
    """Those of `partitions_read` that began where the one before had ended."""
    reads_ahead: Number = _counter()
    """Those of `partitions_read` that a thread had read, or begun to read, while others joined."""
    batched_reads: Number = _counter("batched_read", instead_of="partition_read")
    """Those of `partitions_read` that were looked up several at a time, in compiled code."""
    batched_bytes: Number = _counter("batched_byte", instead_of="byte_read")
    """Those of `bytes_read` that `batched_reads` brought."""
    batched_codes: Number = _counter("batched_code")
    """Keys that were looked for in `batched_reads`."""
    pages_read: Number = _counter("page_read")
    """Pages of R."""
    bytes_read: Number = _counter("byte_read")
    """Bytes of R."""
    decoded_columns: Number = _counter("decoded_column")
    """Columns of these pages that Python made arrays of: one for each column of each page."""
    index_pages_read: Number = _counter("index_page_read")
    """Pages of the locator."""
    probes: Number = _counter("probe")
    """Master rows, or INLJ's stream tuples, that were looked for among the others."""
    hash_probes: Number = _counter("hash_probe")
    """Those of `probes` that were hashed one by one: where R is not read in key order."""
    in_place_probes: Number = _counter("in_place_probe")
    """Stream tuples whose rows were looked up in pages that were in memory."""
    in_place_rows: Number = _counter()
    """Master rows that were found so."""
    front_probes: Number = _counter("front_probe")
    """Stream tuples that were looked up in the front stage."""
    front_chunks: Number = _counter("front_chunk")
    """Chunks of the stream whose tuples the front stage looked up together."""
    offers: Number = _counter("offer")
    """Partitions, or sets of rows found in them, of which the front stage considered some keys."""
    partition_probes: Number = _counter()
    """Partitions, or sets of rows found in them, that were joined with waiting tuples."""
    compiled_probes: Number = _counter("compiled_probe")
    """Those of `partition_probes` that compiled code did."""
    appends: Number = _counter("append")
    """Stream tuples that began to wait."""
    deletes: Number = _counter("delete")
    """Stream tuples that ceased to wait."""
    grouped: Number = _counter("grouped")
    """Those of `appends` that wait in a group of their partition, as DEMANDJOIN's do."""
    uncached: Number = _counter("uncached")
    """Tuples that wait, or are answered in front, beyond the processor's caches."""
    outputs: Number = _counter("output")
    """Result rows: a tuple that matches three master rows gives three."""
    pieces: Number = _counter("piece")
    """Pieces of output that Python gathered, before small ones are put together."""
    columns: Number = _counter("column")
    """Columns that were made for result rows: one for each column of each piece of output."""
    compiled_columns: Number = _counter("compiled_column", instead_of="column")
    """Those of `columns` that compiled code wrote."""
    stream_reads: Number = _counter("stream_read")
    """Stream tuples that were read from their batches."""
    iterations: Number = _counter("iteration")
    """Steps of the algorithm."""
    compiled_iterations: Number = _counter("compiled_iteration", instead_of="iteration")
    """Those of `iterations` that were done many at a time, in compiled code."""
    batched_iterations: Number = _counter("batched_iteration", instead_of="iteration")
    """Those of `iterations` that joined the rows of several `batched_reads`."""
    compiled_calls: Number = _counter("compiled_call")
    """Calls of compiled code that did them, or INLJ's look-ups.

    Each ends with a piece of output, or with rows for the front stage.
    """
    shed: Number = _counter("shed")
    """Stream tuples that were put off to disk."""
    returned: Number = _counter("shed")
    """Those of `shed` that came back."""

    def counts(self) -> dict[str, Number]:
        """All counters by name."""
        return {name: getattr(self, name) for name in _NAMES}

    def since(self, before: Counters[Number]) -> dict[str, Number]:
        """What was counted after `before`, by name."""
        return {name: getattr(self, name) - getattr(before, name) for name in _NAMES}


Counted = Counters[int] | Counters[float]
"""Counters of a run, or of a prediction."""


class Price(NamedTuple):
    """How a counter is priced."""

    counter: str
    factor: str
    instead_of: str
    """The factor that is not paid then, and that stands in if `factor` is None; or ""."""


_NAMES = tuple(each.name for each in fields(Counters))
PRICES = tuple(
    Price(each.name, each.metadata["factor"], each.metadata["instead_of"])
    for each in fields(Counters)
    if each.metadata["factor"]
)
"""The counters that cost something, in the order of the table."""
FACTORS = tuple(dict.fromkeys(price.factor for price in PRICES))
"""Their cost factors."""

_FIRST = {price.factor: price.counter for price in reversed(PRICES)}


def _corrections() -> Iterator[tuple[str, int, int]]:
    """What the first counter of a factor leaves out or has too much: counter, place and sign."""
    for price in PRICES:
        if price.counter != _FIRST[price.factor]:
            yield price.counter, FACTORS.index(price.factor), 1
        if price.instead_of:
            yield price.counter, FACTORS.index(price.instead_of), -1


_first_counts = attrgetter(*(_FIRST[factor] for factor in FACTORS))
_CORRECTIONS = tuple(_corrections())


def operations(counted: Counted) -> list[float]:
    """How often each of `FACTORS` is to be paid for what was counted."""
    number = list(_first_counts(counted))
    for counter, place, sign in _CORRECTIONS:
        number[place] += sign * getattr(counted, counter)
    return number
