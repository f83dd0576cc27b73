"""Shards: parts of a master table, by a hash of the key, so that tasks can share the work.

A row's shard depends on its code alone. A stream that is divided to match uses `shard_of` too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.errors import OptionError
from semistream.keys import Codes

__all__ = ["MOST_SHARDS", "check_shards", "shard_of"]

MOST_SHARDS = 1 << 16
"""More parts than any cluster has tasks."""

# The stream table and the membership filter mix codes with other constants. With the same ones, the
# codes of one shard would crowd into few buckets. Rows are on disk by shard, so these never change.
_STEP = np.uint64(0x9FB21C651E98DF25)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def shard_of(codes: Codes, count: int) -> NDArray[np.int32]:
    """The shard, from 0 to `count` - 1, of each code; O(codes).

    >>> shard_of(np.arange(8), 3).tolist()
    [2, 1, 2, 1, 0, 0, 0, 0]
    """
    if count == 1:
        return np.zeros(len(codes), np.int32)
    mixed = codes.view(np.uint64) + _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(count)).astype(np.int32)


def check_shards(shards: int) -> None:
    """Raise `OptionError` unless it is a possible number of shards."""
    if type(shards) is not int or not 1 <= shards <= MOST_SHARDS:
        raise OptionError(
            f"shards={shards!r} must be an int from 1 to {MOST_SHARDS}. 1 keeps all pages in one "
            "order; as many as there are tasks lets each task have its own part."
        )
