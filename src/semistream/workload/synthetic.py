"""R and S of the papers' synthetic data: 120-byte master rows and 20-byte stream tuples.

Polyzotis et al. 2007, Table 2: the join attribute of either side is Zipf-distributed over a domain
of 3.5 million values, with skews of their own. The later papers take the sizes over; there the
key is unique in R. Rows are made as they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa

from semistream.errors import OptionError
from semistream.workload.zipf import Ints, ZipfKeys, scattered

__all__ = ["KeyedTuples", "master_rows", "numbered_rows", "repeated", "spread"]

_KEY_BYTES = 8
_CHUNK_ROWS = 1 << 16


class KeyedTuples:
    """Stream tuples of `tuple_bytes` bytes: a key and a constant rest.

    `keys(n)` gives the next n keys. The same seed gives the same stream however it is cut.

    Example:
        >>> tuples = KeyedTuples(ZipfKeys(100, 1.0, seed=1).ranks)
        >>> [batch.num_rows for batch in tuples.batches(250, batch_rows=100)]
        [100, 100, 50]
    """

    def __init__(self, keys: Callable[[int], Ints], tuple_bytes: int = 20) -> None:
        if tuple_bytes <= _KEY_BYTES:
            raise OptionError(f"tuple_bytes is {tuple_bytes}; the key alone takes {_KEY_BYTES}.")
        self._keys = keys
        self._rest = pa.binary(tuple_bytes - _KEY_BYTES)
        self.schema = pa.schema([("key", pa.int64()), ("rest", self._rest)])

    @classmethod
    def zipf(
        cls, domain: int, exponent: float, seed: int, scatter: bool = False, tuple_bytes: int = 20
    ) -> KeyedTuples:
        """With Zipf keys: ranks as they are, or scattered over the domain."""
        ranks = ZipfKeys(domain, exponent, seed).ranks
        if not scatter:
            return cls(ranks, tuple_bytes)
        return cls(lambda n: scattered(ranks(n), domain, seed), tuple_bytes)

    def batch(self, rows: int) -> pa.RecordBatch:
        """The next tuples."""
        rest = _constant(self._rest, rows)
        return pa.RecordBatch.from_arrays([pa.array(self._keys(rows)), rest], schema=self.schema)

    def batches(self, rows: int, batch_rows: int = _CHUNK_ROWS) -> Iterator[pa.RecordBatch]:
        """The next `rows` tuples, so many at a time."""
        for start in range(0, rows, batch_rows):
            yield self.batch(min(batch_rows, rows - start))


def master_rows(
    rows: int, keys: Callable[[Ints], Ints], row_bytes: int = 120
) -> Iterator[pa.RecordBatch]:
    """Rows of R with the columns "key" and "payload", for a real master table.

    `keys` gives the key of each row number; the payload is its row's number, repeated.
    """
    if row_bytes <= _KEY_BYTES:
        raise OptionError(f"row_bytes={row_bytes!r} must be more than the {_KEY_BYTES} of a key.")
    for start in range(0, rows, _CHUNK_ROWS):
        yield numbered_rows(np.arange(start, min(start + _CHUNK_ROWS, rows)), keys, row_bytes)


def numbered_rows(numbers: Ints, keys: Callable[[Ints], Ints], row_bytes: int) -> pa.RecordBatch:
    """The rows of R that have these numbers."""
    width = row_bytes - _KEY_BYTES
    filling = np.repeat(numbers.astype("<i8")[:, None], -(-width // 8), axis=1)
    text = pa.py_buffer(np.ascontiguousarray(filling.view(np.uint8)[:, :width]))
    payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(numbers), [None, text])
    return pa.record_batch([pa.array(keys(numbers)), payload], names=["key", "payload"])


def repeated(times: int) -> Callable[[Ints], Ints]:
    """Every key has so many rows."""
    return lambda numbers: numbers // times


def spread(rows: int, domain: int) -> Callable[[Ints], Ints]:
    """Every key of the domain has about as many rows as any other."""
    return lambda numbers: numbers * domain // rows


@lru_cache(maxsize=64)
def _constant(kind: pa.DataType, rows: int) -> pa.Array:
    zeros = pa.py_buffer(np.zeros(rows * kind.byte_width, np.uint8))
    return pa.FixedSizeBinaryArray.from_buffers(kind, rows, [None, zeros])
