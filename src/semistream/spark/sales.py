"""Zipf-distributed sales: the options of a stream of them, and its tuples by their numbers.

Tuples are made in blocks, and the number of a block says where its random generator starts
(J. K. Salmon et al.: Parallel random numbers: as easy as 1, 2, 3. SC 2011). So a tuple depends
only on the options and its number: a replay gives the same rows however batches and partitions
are cut, and executors make them in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from pyspark.sql import datasource as api

from semistream.errors import OptionError
from semistream.workload import ZipfKeys, scattered

__all__ = ["SALES", "SalesMaker", "SalesReader", "SourceOptions", "tuple_ranges"]

SALES: Final = pa.schema(
    [("product_id", pa.int64()), ("quantity", pa.int32()), ("sold_at", pa.timestamp("us"))]
)
"""The columns, as `semistream.workload.sales` has them."""
BLOCK_ROWS: Final = 1 << 14
_FIRST_SALE_US: Final = int(np.datetime64("2025-01-01", "us").astype(np.int64))
_LARGEST_QUANTITY: Final = 9
_CYCLE: Final = 10.0
"""A bursty stream is fast for the first half of this many seconds and slow for the second."""
BURST: Final = 1.8
"""Its rate in the fast half, in average rates; that in the slow half is 2 − 1.8 = 0.2."""
_NUMBERS: Final[dict[str, tuple[str, type[int] | type[float], float, float]]] = {
    "keys": ("keys", int, 1, 2**53),
    "exponent": ("exponent", float, 0, 100),
    "seed": ("seed", int, 0, 2**63 - 1),
    "rate": ("rate", float, 1e-6, 1e12),
    "rowsPerBatch": ("rows_per_batch", int, 1, 2**53),
    "rows": ("rows", int, 0, 2**53),
    "numPartitions": ("partitions", int, 1, 100_000),
}
"""The name of an option in Spark → its field, its type, and its least and greatest value."""
_FLAGS: Final = ("scattered", "bursty")


@dataclass(frozen=True)
class SourceOptions:
    """The options of a stream of sales; in brackets their names in Spark, where they differ."""

    keys: int = 1_000_000
    """How many different products are sold."""
    exponent: float = 1.0
    """The exponent of the Zipf law; 0 is uniform."""
    seed: int = 0
    rate: float | None = None
    """Tuples a second; 10,000 if neither this nor `rowsPerBatch` is given."""
    rows_per_batch: int | None = None
    """[rowsPerBatch] tuples a micro-batch, however fast batches follow one another."""
    rows: int | None = None
    """Tuples in all; without it the stream is endless."""
    scattered: bool = True
    """Whether the hot products are spread over all keys; if not, they have the lowest."""
    bursty: bool = False
    """Whether tuples come fast and slow in turn, at the same rate on average."""
    partitions: int = 2
    """[numPartitions] Spark tasks that make a batch."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """From the strings that Spark gives; `OptionError` for an unknown option or a bad value."""
        known = {name.lower(): name for name in (*_NUMBERS, *_FLAGS)}
        unknown = sorted(name for name in options if name.lower() not in known)
        if unknown:
            raise OptionError(
                f"The semistream source has no option {', '.join(map(repr, unknown))}. "
                f"Its options are: {', '.join(known.values())}."
            )
        parsed = cls(**dict(_parsed(known[name.lower()], text) for name, text in options.items()))
        if parsed.rate is not None and parsed.rows_per_batch is not None:
            raise OptionError(
                f"rate={parsed.rate:g} and rowsPerBatch={parsed.rows_per_batch} are both given, "
                "but tuples come either by time or by batch. Leave one of them out."
            )
        by_time = parsed.rows_per_batch is None and parsed.rate is None
        return replace(parsed, rate=10_000.0) if by_time else parsed

    def batch_end(self, first: int) -> int:
        """One past the last tuple of the micro-batch that begins at `first`."""
        size = self.rows_per_batch or 0
        if not self.bursty:
            return first + size
        cycle, place = divmod(first, 2 * size)
        fast = int(size * BURST)
        return cycle * 2 * size + (fast if place < fast else 2 * size)

    def arrived(self, seconds: float) -> int:
        """Tuples that have arrived `seconds` after the stream began."""
        if self.bursty:
            cycles, rest = divmod(seconds, _CYCLE)
            slow = max(rest - _CYCLE / 2, 0.0) * (2 - BURST)
            seconds = cycles * _CYCLE + min(rest, _CYCLE / 2) * BURST + slow
        return int(seconds * (self.rate or 0.0))

    def arrival_seconds(self, tuples: ArrayLike) -> NDArray[np.float64]:
        """When tuples of these numbers arrive: the inverse of `arrived`. O(tuples)."""
        # Without a rate, tuples are as far apart as in `workload.sales`.
        seconds: NDArray[np.float64] = np.asarray(tuples, np.float64) / (self.rate or 10_000.0)
        if not (self.bursty and self.rate):
            return seconds
        cycles, place = np.divmod(seconds, _CYCLE)
        fast = _CYCLE / 2 * BURST
        slow = _CYCLE / 2 + (place - fast) / (2 - BURST)
        return cycles * _CYCLE + np.where(place < fast, place / BURST, slow)


def _parsed(name: str, text: str) -> tuple[str, Any]:
    if name in _FLAGS:
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{name} is {text!r}; give true or false.")
        return name, text.lower() == "true"
    field, kind, least, most = _NUMBERS[name]
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        word = "a whole number" if kind is int else "a number"
        raise OptionError(f"{name} is {text!r}; give {word} from {least:g} to {most:g}.")
    return field, value


class SalesMaker:
    """Makes stream tuples, in whatever task it is shipped to."""

    def __init__(self, options: SourceOptions) -> None:
        """Nothing is made yet."""
        self._options = options

    def read(self, partition: api.InputPartition) -> Iterator[pa.RecordBatch]:
        """The tuples of a range, a batch per block that it touches."""
        start, stop = partition.value
        for number in range(start // BLOCK_ROWS, -(-stop // BLOCK_ROWS)):
            low, high = (max(min(n - number * BLOCK_ROWS, BLOCK_ROWS), 0) for n in (start, stop))
            yield _block(self._options, number).slice(low, high - low)


class SalesReader(SalesMaker, api.DataSourceReader):
    """The whole of a stream that ends."""

    def partitions(self) -> Sequence[api.InputPartition]:
        """Ranges of whole blocks; Spark needs one even for a stream without tuples."""
        ranges = tuple_ranges(0, self._options.rows or 0, self._options.partitions)
        return ranges or [api.InputPartition((0, 0))]


def tuple_ranges(start: int, stop: int, count: int) -> list[api.InputPartition]:
    """At most `count` ranges, (start, stop) each, that cover the tuples and share no block."""
    if start >= stop:
        return []
    first, last = start // BLOCK_ROWS, -(-stop // BLOCK_ROWS)
    count = min(count, last - first)
    cuts = [(first + (last - first) * i // count) * BLOCK_ROWS for i in range(1, count)]
    return [api.InputPartition(edges) for edges in pairwise([start, *cuts, stop])]


def _block(options: SourceOptions, number: int) -> pa.RecordBatch:
    ids, quantity = _keys(options.keys, options.exponent, options.seed).block(number)
    if options.scattered:
        ids = scattered(ids, options.keys, options.seed)
    tuples = np.arange(number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS)
    micros = _FIRST_SALE_US + (options.arrival_seconds(tuples) * 1e6).astype(np.int64)
    columns = [pa.array(ids), pa.array(quantity), pa.array(micros).view(pa.timestamp("us"))]
    return pa.record_batch(columns, schema=SALES)


class _BlockKeys(ZipfKeys):
    def block(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Ranks and quantities of a block, from a generator set to its start."""
        # The lower half of the counter is for the draws within the block.
        self._random = np.random.Generator(np.random.Philox(key=self.seed, counter=number << 128))
        ranks = self.ranks(BLOCK_ROWS)
        return ranks, self._random.integers(1, _LARGEST_QUANTITY + 1, BLOCK_ROWS, np.int32)


@lru_cache(maxsize=1)
def _keys(domain: int, exponent: float, seed: int) -> _BlockKeys:
    """The distribution of the keys. Its table is large, so a worker keeps it between tasks."""
    return _BlockKeys(domain, exponent, seed)
