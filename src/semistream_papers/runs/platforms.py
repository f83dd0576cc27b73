"""The machines of the papers, as prices of operations.

A priced run counts operations and multiplies them with what each took on the paper's machine. The
papers give few single costs, so the prices are derived from the rates and ratios that they report
in words. What no reported number says anything about is assumed, and marked as assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from semistream.algorithms.registry import needs_of
from semistream.cost.factors import CostFactors

__all__ = ["MYSQL", "PLATFORMS", "RAW_DISK", "Platform"]


@dataclass(frozen=True)
class Platform:
    """A paper's disk and CPU."""

    name: str
    factors: CostFactors
    look_up: float
    """Seconds in which an index look-up brings one row: INLJ's unit."""
    derivation: tuple[str, ...]
    """Where the prices come from, a sentence each."""

    def prices(self, algorithm: str) -> CostFactors:
        """The prices for an algorithm.

        Where no tuple waits for others, each has a look-up of its own, which fetches a row and not
        a page.
        """
        if needs_of(algorithm).waiting:
            return self.factors
        return replace(
            self.factors,
            partition_read=self.look_up,
            sequential_read=self.look_up,
            page_read=0.0,
            byte_read=0.0,
        )


RAW_DISK: Final = Platform(
    "Pentium IV 3 GHz, a 7,200 rpm disk read directly (2007)",
    CostFactors(
        partition_read=3.6e-3,
        sequential_read=2e-4,
        byte_read=1 / 50e6,
        probe=0.8e-6,
        front_probe=0.8e-6,
        append=7.8e-6,
        delete=7.8e-6,
        stream_read=7.8e-6,
        output=0.4e-6,
        shed=7.8e-6,
    ),
    look_up=3.65e-3,
    derivation=(
        "INL does 274 tuples/s with 2 MB (§4.2): a look-up takes 1/274 s = 3.65 ms.",
        "MESHJOIN does 3,500, a little over 6,000 and 26,000 tuples/s with 2, 4 and 40 MB. With "
        "1/μ = T/h + c, a window of h = M / 50 bytes (what a waiting tuple takes here) and a scan "
        "of R in T seconds, the last two give T = 11.4 s and c = 24 µs; the first is then met to "
        "8 %.",
        "T is 420 MB at 50 MB/s, which is what a disk of its time reads in sequence, and 3.5 "
        "million probes of 0.8 µs.",
        "With the highest skew in R the least rate is 9,000 tuples/s with 20 MB; a stream tuple "
        "then has about 156 results, which leaves 0.4 µs for each.",
        "What remains of c, 23.5 µs, is divided evenly between reading, adding and removing a "
        "tuple.",
        "Assumed: 0.2 ms for each read of a scan, since the text says nothing about it.",
    ),
)

MYSQL: Final = Platform(
    "Pentium IV 2 × 2.13 GHz, Java, MySQL 5.0 (2011 to 2013); i5 (2017)",
    CostFactors(
        partition_read=6.7e-3,
        sequential_read=1e-3,
        byte_read=53e-6 / 120,
        probe=0.8e-6,
        front_probe=0.8e-6,
        append=7.8e-6,
        delete=7.8e-6,
        stream_read=7.8e-6,
        output=0.4e-6,
        shed=7.8e-6,
    ),
    look_up=6.7e-3,
    derivation=(
        "Below 150 tuples/s a tuple waits longer for HYBRIDJOIN than for INLJ (2011, §6.2.1): "
        "INLJ stops keeping up at about that rate, so a look-up is taken to last 1/150 s = 6.7 ms.",
        "HYBRIDJOIN is at most 5 times slower than INLJ (§4.3), both with a read for each tuple: a "
        "partition of 500 rows, which is the authors' size, takes 5 look-ups = 33.3 ms. So a row "
        "takes (33.3 - 6.7) / 500 ms = 53 µs, wherever it lies: 2.3 MB/s.",
        "It is at most 2 times slower than MESHJOIN, which reads the same rows without looking "
        "them up: 33.3 / 27.7 = 1.2 is within that.",
        "No cost of a CPU operation is in the text: those of 2007 are used, which are a tenth of "
        "the time of a row.",
        "Assumed: 1 ms for each fetch of a scan, a round trip to the database.",
        "The 2017 paper has another machine and no absolute rate in its text; the same prices are "
        "used there, and only ratios and shapes are compared.",
    ),
)

PLATFORMS: Final = {"raw disk": RAW_DISK, "mysql": MYSQL}
"""By the name that a run carries."""
