"""Rows 4 to 8: ss.join on Spark against what users could pick instead.

Every way gets the same micro-batches and writes to the noop sink. Whole triggers are timed, Spark's
planning and logs included. All ways share two Python workers, which keep their engines and open
stores from round to round.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from pyspark.sql import SparkSession

from measures.findings import Finding, say
from semistream.workload import ZipfKeys
from semistream_bench.measure import check_alike, result_of
from semistream_bench.peers import duckdb_rows
from semistream_bench.shop import KEY, Shop
from semistream_bench.triggers import StreamFiles
from semistream_bench.turns import Seconds, in_turns
from semistream_bench.ways import STORES, Way, ways

_OURS, _IDENTITY, _WIDE = "semistream", "identity", "wide identity"
_STATIC, _BROADCAST = "stream-static", "broadcast"


@dataclass(frozen=True)
class SparkMeasures:
    """Spark's rows. R of 5 million rows has `rows`; the others are in proportion."""

    spark: SparkSession
    rows: int
    rounds: int
    seed: int
    folder: Path
    share: float
    cores: int

    def findings(self, wanted: set[int], large: bool) -> Iterator[Finding]:
        """The rows that are wanted; with `large`, row 6 has R four times as large too."""
        if wanted & {4, 5, 6}:
            yield from self._full_size(wanted)
        if wanted & {7, 8}:
            yield from self._small(wanted)
        if 6 in wanted and large:
            shop = self._shop(4 * self.rows)
            seconds = self._seconds(shop, [_OURS, _STATIC], 100_000, batches=3)
            yield self._finding(6, shop, 60, seconds, _STATIC, 100_000)

    def _full_size(self, wanted: set[int]) -> Iterator[Finding]:
        shop = self._shop(self.rows)
        if 5 in wanted:
            shop.add_stores(list(STORES))
            table, path = shop.table(), shop.folder / "keyed.duckdb"
            shop.stores["DuckDB (1 GB, primary key)"] = duckdb_rows.build(
                table, path, KEY, "1GB", primary_key=True
            )
        names = [_OURS]
        names += [_WIDE] if 4 in wanted else []
        names += list(shop.stores) if 5 in wanted else []
        names += [_STATIC] if 6 in wanted else []
        seconds = self._seconds(shop, names, 100_000, batches=5)
        if 4 in wanted:
            yield self._finding(4, shop, 0.75, seconds, _WIDE, 100_000)
        if 5 in wanted:
            for peer in shop.stores:
                yield self._finding(5, shop, 1.6, seconds, peer, 100_000)
                if 4 in wanted:
                    say(f"  a join that took no time: {_most(seconds, peer):.2f} of {peer}")
        if 6 in wanted:
            yield self._finding(6, shop, 20, seconds, _STATIC, 100_000)

    def _small(self, wanted: set[int]) -> Iterator[Finding]:
        shop = self._shop(self.rows // 10)
        if 7 in wanted:
            for tuples in (50_000, 100_000):
                seconds = self._seconds(shop, [_OURS, _STATIC, _BROADCAST], tuples, batches=5)
                for other in (_STATIC, _BROADCAST):
                    yield self._finding(7, shop, 1.5, seconds, other, tuples)
        if 8 in wanted:
            seconds = self._seconds(shop, [_OURS, _IDENTITY, _WIDE], 3_000, batches=15)
            for other in (_IDENTITY, _WIDE):
                yield self._finding(8, shop, 1.4, seconds, other, 3_000, inverse=True)

    def _shop(self, rows: int) -> Shop:
        return Shop(self.folder / str(rows), rows, self.share, self.seed, say)

    def _seconds(self, shop: Shop, names: list[str], tuples: int, batches: int) -> Seconds:
        say(f"R {shop.rows:,}, {tuples:,} a batch: {'; '.join(names)} …")
        keys = ZipfKeys(shop.rows, 1.0, seed=self.seed)
        warm = 2
        files = StreamFiles(
            shop.folder / f"sales-{tuples}", keys, tuples, self.rounds, warm + batches
        )
        chosen = ways(shop, self.spark, self.cores, names)
        first = files.first(self.spark)
        found = {name: result_of(way, first) for name, way in chosen.items()}
        check_alike({name: way.gives_rows for name, way in chosen.items()}, found)
        timed = {
            name: partial(_trigger_seconds, files, self.spark, way, warm, self.cores)
            for name, way in chosen.items()
        }
        return in_turns(timed, self.rounds, say)

    def _finding(
        self,
        row: int,
        shop: Shop,
        bound: float,
        seconds: Seconds,
        other: str,
        tuples: int,
        inverse: bool = False,
    ) -> Finding:
        what = f"{_OURS} over {other}" if inverse else f"/ {other}"
        text = f"Spark, R {shop.rows:,}, {tuples:,} a batch{':' if inverse else ''} {what}"
        parameters = {"rows": shop.rows, "seed": self.seed, "share": self.share}
        parameters |= {"budget": shop.memory, "cores": self.cores}
        return Finding(row, text, bound, seconds, _OURS, other, tuples, parameters, inverse)


def _most(seconds: Seconds, peer: str) -> float:
    """What a join could come to against a peer: only Spark and the transfer of columns are left."""
    peer_time, rest = (statistics.median(chain(*seconds[way])) for way in (peer, _WIDE))
    return peer_time / rest


def _trigger_seconds(
    files: StreamFiles, spark: SparkSession, way: Way, warm: int, cores: int, number: int
) -> list[float]:
    return files.trigger_seconds(spark, way, number, warm, cores)
