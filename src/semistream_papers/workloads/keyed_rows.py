"""Rows of a key and a filling: the papers' 120-byte master rows and 20-byte stream tuples.

Polyzotis et al. 2007, Table 2: on either side the join attribute follows a Zipf law over 3.5
million values, each side with its own exponent. The later papers use the same sizes, with a key
that is unique in R. Rows are made as they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from semistream.errors import OptionError
from semistream.workload.zipf import Ints, ZipfKeys, scattered

__all__ = [
    "KEY_BYTES",
    "KeyRule",
    "KeyedTuples",
    "master_rows",
    "numbered_rows",
    "repeated",
    "spread",
    "zero_column",
]

KeyRule: TypeAlias = Callable[[Ints], Ints]
"""From row numbers to keys, which never fall from one row to the next."""

KEY_BYTES = 8
_CHUNK_ROWS = 1 << 16


class KeyedTuples:
    """Stream tuples of `tuple_bytes` bytes: a key, and zeros for the rest.

    `keys(n)` gives the next n keys.

    Example:
        >>> tuples = KeyedTuples(ZipfKeys(100, 1.0, seed=1).ranks)
        >>> [batch.num_rows for batch in tuples.batches(250, batch_rows=100)]
        [100, 100, 50]
    """

    def __init__(self, keys: Callable[[int], Ints], tuple_bytes: int = 20) -> None:
        if tuple_bytes <= KEY_BYTES:
            raise OptionError(f"tuple_bytes is {tuple_bytes}; the key alone takes {KEY_BYTES}.")
        self._keys = keys
        self._rest = pa.binary(tuple_bytes - KEY_BYTES)
        self.schema = pa.schema([("key", pa.int64()), ("rest", self._rest)])

    @classmethod
    def zipf(
        cls, domain: int, exponent: float, seed: int, scatter: bool = False, tuple_bytes: int = 20
    ) -> KeyedTuples:
        """With Zipf keys: the ranks themselves, or ranks scattered over the domain."""
        ranks = ZipfKeys(domain, exponent, seed).ranks
        if not scatter:
            return cls(ranks, tuple_bytes)
        return cls(lambda n: scattered(ranks(n), domain, seed), tuple_bytes)

    def batch(self, rows: int) -> pa.RecordBatch:
        """The next tuples."""
        rest = zero_column(self._rest, rows)
        return pa.RecordBatch.from_arrays([pa.array(self._keys(rows)), rest], schema=self.schema)

    def batches(self, rows: int, batch_rows: int = _CHUNK_ROWS) -> Iterator[pa.RecordBatch]:
        """The next `rows` tuples, `batch_rows` at a time."""
        for start in range(0, rows, batch_rows):
            yield self.batch(min(batch_rows, rows - start))


def master_rows(rows: int, keys: KeyRule, row_bytes: int = 120) -> Iterator[pa.RecordBatch]:
    """Rows of R with the columns "key" and "payload", for a real master table.

    `keys` gives the key of each row number; the payload is its row's number, repeated.
    """
    if row_bytes <= KEY_BYTES:
        raise OptionError(f"row_bytes={row_bytes!r} must be more than the {KEY_BYTES} of a key.")
    for start in range(0, rows, _CHUNK_ROWS):
        yield numbered_rows(np.arange(start, min(start + _CHUNK_ROWS, rows)), keys, row_bytes)


def numbered_rows(numbers: Ints, keys: KeyRule, row_bytes: int) -> pa.RecordBatch:
    """The rows of R that have these numbers."""
    width = row_bytes - KEY_BYTES
    filling = np.repeat(numbers.astype("<i8")[:, None], -(-width // 8), axis=1)
    text = pa.py_buffer(np.ascontiguousarray(filling.view(np.uint8)[:, :width]))
    payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(numbers), [None, text])
    return pa.record_batch([pa.array(keys(numbers)), payload], names=["key", "payload"])


def repeated(times: int) -> KeyRule:
    """Every key has this many rows."""
    return lambda numbers: numbers // times


def spread(rows: int, domain: int) -> KeyRule:
    """Every key of the domain has about as many rows as any other."""
    return lambda numbers: numbers * domain // rows


@lru_cache(maxsize=64)
def zero_column(kind: pa.DataType, rows: int) -> pa.Array:
    """A column of `rows` values, each of them zero bytes."""
    zeros = pa.py_buffer(np.zeros(rows * kind.byte_width, np.uint8))
    return pa.FixedSizeBinaryArray.from_buffers(kind, rows, [None, zeros])
