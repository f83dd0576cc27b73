"""How many stream tuples a batch can join within its time, and which ones wait if there are more.

This number, the capacity, is learned: it falls after a batch that took too long, and grows after a
full one that was quick. If more tuples arrive, those that cost the most are put off: tuples of the
keys that occur least often in the batch, since few of them share a page read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from semistream.spark.columns import PREFIX, column
from semistream.spark.pipeline.queues import QueueEntry
from semistream.spark.pipeline.stage_task import FROM_DEFERRED, ORIGIN

__all__ = ["PUT_OFF", "chunk_count", "cut", "learned", "put_off", "taken_back"]

PUT_OFF: Final = PREFIX + "put_off"
_LEAST: Final = 1000
"""Every batch may join this many tuples, so that a pipeline moves on whatever the target is."""
_GROWTH: Final = 2.0
_FULL: Final = 0.9
_CHUNKS: Final = 4
"""Tuples that are put off wait in parts of 1 / 4 of the capacity, so that a part fits soon."""
_TUPLES_SHARE: Final = 0.3
"""If tuples take a smaller share of a batch's time than this, fewer of them would not help."""
_HASH: Final = PREFIX + "hash"
_KEPT: Final = PREFIX + "kept"
_GRAINS: Final = 1_000_000


def learned(
    known: int | None,
    joined: int,
    seconds: float,
    target: float,
    before: tuple[int, float] | None = None,
) -> int | None:
    """The capacity after a batch; None while no batch has taken too long.

    `before` has the tuples and seconds of the batch before. If that one had more tuples and was
    hardly slower, it is not the tuples that take the time, and deferring them would gain nothing.

    >>> learned(None, 50_000, 1.0, target=2.0), learned(None, 50_000, 4.0, target=2.0)
    (None, 25000)
    >>> learned(25_000, 25_000, 1.5, target=2.0), learned(25_000, 9_000, 1.5, target=2.0)
    (33333, 25000)
    >>> learned(25_000, 25_000, 3.5, target=2.0, before=(50_000, 4.0))
    50000
    """
    fit = joined * target / max(seconds, 1e-9)
    if seconds > target:
        if before is not None and joined < _FULL * before[0]:
            saved = (before[1] - seconds) / (before[0] - joined) * joined
            if saved < _TUPLES_SHARE * seconds:
                return max(before[0], _LEAST)
        return max(int(fit), _LEAST)
    if known is None or joined < _FULL * known:
        return known
    return int(min(fit, known * _GROWTH))


def taken_back(
    entries: Sequence[QueueEntry], capacity: int | None, arrived: int, idle: bool
) -> list[QueueEntry]:
    """The deferred entries that a batch takes in: the oldest first, while there is room.

    If nothing else arrives (`idle`), the first is taken even if it alone is too large.
    """
    if capacity is None:
        return list(entries)
    taken: list[QueueEntry] = []
    room = capacity - arrived
    for entry in entries:
        # An entry may date from a larger capacity and never fit: half a batch of room will do.
        if entry.rows > room and not (not taken and (idle or 2 * room >= capacity)):
            break
        taken.append(entry)
        room -= entry.rows
    return taken


def chunk_count(excess: int, capacity: int) -> int:
    """In how many parts the excess waits."""
    return -(-excess * _CHUNKS // max(capacity, 1))


def cut(frequencies: Mapping[int, int], excess: int) -> tuple[int, float]:
    """The frequency up to which keys are put off, and the share of keys of just that frequency.

    `frequencies` maps a frequency to the number of tuples whose keys have it. O(frequencies).

    >>> cut({1: 600, 2: 400, 50: 1000}, excess=800)
    (2, 0.5)
    """
    rest = excess
    for frequency, rows in sorted(frequencies.items()):
        if rows >= rest:
            return frequency, rest / rows
        rest -= rows
    return max(frequencies, default=0), 1.0


def put_off(frame: DataFrame, key: Sequence[str], excess: int) -> DataFrame:
    """The frame with a column `PUT_OFF`: which tuples to defer, about `excess` of them.

    Tuples with a null key cost nothing, and those that were put off before have waited: they stay.
    The frame is read twice more, so cache it.
    """
    columns = [column(name) for name in key]
    has_key = reduce(and_, (each.isNotNull() for each in columns))
    if ORIGIN in frame.columns:
        has_key &= F.col(ORIGIN) != FROM_DEFERRED
    hashed = frame.withColumn(_HASH, F.when(has_key, F.xxhash64(*columns)))
    counts = hashed.where(F.col(_HASH).isNotNull()).groupBy(_HASH).count()
    sizes = counts.groupBy("count").agg(F.count(F.lit(1)).alias("keys")).collect()
    last, share = cut({row["count"]: row["count"] * row["keys"] for row in sizes}, excess)
    # By hash, so that a key is put off with all its tuples or with none.
    lucky = F.pmod(F.col(_HASH), F.lit(_GRAINS)) >= int(share * _GRAINS)
    kept = counts.where((F.col("count") > last) | ((F.col("count") == last) & lucky))
    known = F.broadcast(kept.select(_HASH, F.lit(True).alias(_KEPT)))
    waits = F.col(_HASH).isNotNull() & F.col(_KEPT).isNull()
    return hashed.join(known, _HASH, "left").withColumn(PUT_OFF, waits).drop(_HASH, _KEPT)
