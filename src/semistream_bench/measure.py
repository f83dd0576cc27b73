"""One comparison: the ways on one shop, warm on Spark, their memory, and cold without Spark."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

import semistream as ss
from semistream.workload import ZipfKeys
from semistream_bench.cold import cold_seconds
from semistream_bench.resident import Resident, forget_peak, resident
from semistream_bench.shop import Shop
from semistream_bench.triggers import StreamFiles
from semistream_bench.turns import Seconds, in_turns, why
from semistream_bench.ways import OURS, PACKED, STORES, Way, ways

__all__ = ["Comparison", "Measured", "check_alike", "result_of"]

_WARM = 2


@dataclass(frozen=True)
class Measured:
    """What was measured of one way."""

    way: str
    where: str
    """"warm": R in the page cache, whole triggers on Spark. "cold": tasks without Spark."""
    tuples: int
    seconds: list[float]
    """Of each trigger or task, of all rounds."""
    ratio: float
    """Our rate over this one's, from medians."""
    ratios: tuple[float, float]
    """The lowest and the highest of it when each round stands alone."""
    resident: Resident | None = None
    failed: str = ""
    """Why it could not be measured."""
    allowed: int | None = None
    """Bytes of memory that a task may take; None for those without a limit."""

    @property
    def rate(self) -> float:
        """Tuples a second, from the median."""
        return self.tuples / statistics.median(self.seconds) if self.seconds else 0.0


@dataclass(frozen=True)
class Comparison:
    """Which ways to compare, and how."""

    rows: int
    tuples: int
    batches: int
    rounds: int
    share: float
    exponent: float
    cores: int
    seed: int
    names: list[str]
    cold: bool
    memory: bool
    say: Callable[[str], None]

    def run(self, folder: Path | None) -> Iterator[list[Measured]]:
        """Lay out the data in a temporary folder inside `folder`, and measure: warm, then cold."""
        with tempfile.TemporaryDirectory(dir=folder, prefix="semistream-bench-") as name:
            shop = Shop(Path(name), self.rows, self.share, self.seed, self.say)
            stores = [name for name in STORES if name in self.names]
            if stores:
                self.say(f"{', '.join(stores)} …")
                shop.add_stores(stores)
            keys = ZipfKeys(self.rows, self.exponent, seed=self.seed)
            files = StreamFiles(
                Path(name, "sales"), keys, self.tuples, self.rounds, _WARM + self.batches
            )
            yield self._warm(shop, files)
            if self.cold:
                yield self._cold(shop)

    def _warm(self, shop: Shop, files: StreamFiles) -> list[Measured]:
        spark = self._session(shop)
        self.say(f"Warm: {self.tuples:,} tuples a batch, {shop.memory:,} bytes a task …")
        every = ways(shop, spark, self.cores, self.names)
        first = files.first(spark)
        found, failed = {}, {}
        for name, way in every.items():
            try:
                found[name] = result_of(way, first)
            except Exception as error:
                failed[name] = why(error)
                self.say(f"  {name} failed: {failed[name]}")
        check_alike({name: every[name].gives_rows for name in found}, found)
        timed = {name: partial(self._triggers, files, spark, every[name]) for name in found}
        seconds = in_turns(timed, self.rounds, self.say, failed)
        spark.stop()
        held = self._resident(shop, files, list(seconds)) if self.memory else {}
        measured = [
            self._measured(shop, name, "warm", self.tuples, seconds, held.get(name))
            for name in seconds
        ]
        return measured + [
            Measured(name, "warm", self.tuples, [], 0.0, (0.0, 0.0), failed=reason)
            for name, reason in failed.items()
        ]

    def _cold(self, shop: Shop) -> list[Measured]:
        self.say("Cold: without Spark, nothing of R in the page cache …")
        ours = [name for name in (OURS, PACKED) if name in self.names]
        tuples = self.tuples // self.cores
        cold = cold_seconds(shop, ours, tuples, self.exponent, self.rounds, self.say)
        return [self._measured(shop, name, "cold", tuples, cold) for name in cold]

    def _resident(self, shop: Shop, files: StreamFiles, names: list[str]) -> dict[str, Resident]:
        """The memory of each way, in a session of its own: workers keep what others left."""
        found = {}
        for name in names:
            spark = self._session(shop)
            (way,) = ways(shop, spark, self.cores, [name]).values()
            forget_peak(spark)
            self._triggers(files, spark, way, 0)
            found[name] = resident(spark)
            self.say(f"  memory of {name}: {found[name].workers / 1e6:,.0f} MB in workers")
            spark.stop()
        return found

    def _session(self, shop: Shop) -> SparkSession:
        return ss.local_session(
            cores=self.cores,
            memory="4g",
            log=shop.folder / "spark.log",
            **{
                "spark.sql.shuffle.partitions": str(self.cores),
                "spark.sql.files.openCostInBytes": str(1 << 20),
                "spark.sql.warehouse.dir": str(shop.warehouse),
                # Each trigger is looked up there, and those that bring nothing are there too.
                "spark.sql.streaming.numRecentProgressUpdates": str(2 * (_WARM + self.batches)),
            },
        )

    def _triggers(
        self, files: StreamFiles, spark: SparkSession, way: Way, number: int
    ) -> list[float]:
        return files.trigger_seconds(spark, way, number, _WARM, self.cores)

    def _measured(
        self,
        shop: Shop,
        name: str,
        where: str,
        tuples: int,
        seconds: Seconds,
        held: Resident | None = None,
    ) -> Measured:
        theirs, ours = seconds[name], seconds[OURS]
        each = [_ratio(a, b) for a, b in zip(theirs, ours, strict=True)]
        whole = _ratio(list(chain(*theirs)), list(chain(*ours)))
        taken = [round(second, 6) for second in chain(*theirs)]
        allowed, span = shop.allowed(name), (min(each), max(each))
        return Measured(name, where, tuples, taken, whole, span, held, allowed=allowed)


def _ratio(theirs: list[float], ours: list[float]) -> float:
    return statistics.median(theirs) / statistics.median(ours)


def result_of(way: Way, batch: DataFrame) -> tuple[int, Decimal]:
    """How many rows a way gives for a batch, and a checksum of them."""
    joined = way.join(batch)
    hashes = F.xxhash64(*sorted(joined.columns)).cast("decimal(38)")
    count, checksum = joined.agg(F.count("*"), F.sum(hashes)).first() or (0, Decimal(0))
    return count, checksum


def check_alike(gives_rows: Mapping[str, bool], found: Mapping[str, tuple[int, Decimal]]) -> None:
    """Raise unless all joins give the same rows, and the others as many."""
    joins = {result for name, result in found.items() if gives_rows[name]}
    if len(joins) > 1 or len({count for count, _ in found.values()}) != 1:
        raise AssertionError(f"Rows and checksums differ: {found}")
