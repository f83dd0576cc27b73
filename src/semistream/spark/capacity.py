"""How many stream tuples a batch can join within its time, and which ones wait when there are more.

The capacity is learned: a batch that took too long shows what would have been enough; a full one
that was quick makes room for the next. When more tuples arrive, those are put off that cost the
most: the keys that occur least often in the batch, since few tuples share their page read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from semistream.spark.queues import QueueEntry
from semistream.spark.routes import PREFIX

__all__ = ["PUT_OFF", "chunk_count", "cut", "learned", "put_off", "taken_back"]

PUT_OFF: Final = PREFIX + "put_off"
_LEAST: Final = 1000
"""Tuples that every batch may join, so that a pipeline gets on whatever the target."""
_GROWTH: Final = 2.0
_FULL: Final = 0.9
_CHUNKS: Final = 4
"""Put-off tuples wait in parts of this fraction of the capacity, so that some fit any room."""
_TUPLES_SHARE: Final = 0.3
"""A batch whose tuples take less of its time than this is as quick with any number of them."""
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
    """The capacity after a batch; None while no batch has reached its time.

    `before` are the tuples and seconds of the batch before. If fewer tuples were hardly quicker, it
    is not the tuples that take the time: then there is nothing to gain from deferring them.

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

    When nothing else arrives (`idle`) the first comes in even if it alone is too much.
    """
    if capacity is None:
        return list(entries)
    taken: list[QueueEntry] = []
    room = capacity - arrived
    for entry in entries:
        # Half of a batch is room enough for an entry from when the capacity was larger.
        if entry.rows > room and not (not taken and (idle or 2 * room >= capacity)):
            break
        taken.append(entry)
        room -= entry.rows
    return taken


def chunk_count(excess: int, capacity: int) -> int:
    """In how many parts so many put-off tuples wait."""
    return -(-excess * _CHUNKS // max(capacity, 1))


def cut(frequencies: Mapping[int, int], excess: int) -> tuple[int, float]:
    """The frequency up to which keys are put off, and the share of those that just have it.

    `frequencies` says how many tuples there are of keys that occur so often. O(frequencies).

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

    Tuples with a null key cost nothing, and stay. The frame is read twice more: cache it.
    """
    columns = [F.col("`" + name.replace("`", "``") + "`") for name in key]
    has_key = reduce(and_, (column.isNotNull() for column in columns))
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
