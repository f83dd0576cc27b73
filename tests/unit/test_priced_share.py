"""The share of a front stage that is judged by its price, and its rest when it answers nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import semistream as ss
from semistream.parts.rebalancer import priced_rows
from semistream.workload import ZipfKeys, products, sales

POOL, ROW = 1000.0, 1.0


def settled(hits: Callable[[float], float], rows: int) -> float:
    """The share at which the rule stops, for streams where a share of rows answers so much."""
    for _ in range(50):
        before = rows
        share = rows * ROW / POOL
        rows = priced_rows(rows, hits(share), hits(share / 1.5), ROW, POOL, 0.4)
        if rows == before:
            break
    return rows / POOL


@pytest.mark.parametrize("begin", [8, 150, 400])
@pytest.mark.parametrize(
    ("hits", "best"),
    [
        # (1 - h) / (1 - s) is least where its derivative is 0, found on paper.
        (lambda s: 1 - 0.02 * s**-0.5, 1 / 3),
        (lambda s: (0.2 * s) ** 0.5, 0.055),
    ],
    ids=["strong skew", "mild skew"],
)
def test_the_share_goes_to_where_it_saves_most(
    hits: Callable[[float], float], best: float, begin: int
) -> None:
    share = settled(hits, begin)

    def reads(s: float) -> float:
        return (1 - hits(s)) / (1 - s)

    assert reads(share) <= 1.03 * reads(best)


def test_a_front_stage_that_answers_nothing_falls_to_its_least() -> None:
    assert settled(lambda s: 0.0, 400) < 0.01
    assert priced_rows(0, 0.0, 0.0, ROW, POOL, 0.4) == 0


@pytest.mark.parametrize(("saved", "rows"), [(0.05, 100), (0.01, 150)])
def test_a_front_stage_does_not_shrink_for_a_hundredth_of_the_reads(
    saved: float, rows: int
) -> None:
    reads = (1 - 0.5) / (1 - 0.15)
    of_most = 1 - reads * (1 - saved) * (1 - 0.1)
    assert priced_rows(150, 0.5, of_most, ROW, POOL, 0.4) == rows


def test_with_a_uniform_stream_the_front_stage_rests(tmp_path: Path) -> None:
    """It is asked for one turn in eight; with skew, for every tuple."""
    rows = 20_000
    master = ss.MasterTable.from_arrow(
        products(rows, seed=1), tmp_path / "r", key="product_id", page_bytes=4096
    )
    asked = {}
    for exponent in (0.0, 1.0):
        stream = sales(200_000, ZipfKeys(rows, exponent, seed=1), rows, batch_rows=10_000)
        engine = ss.engine(
            master, algorithm="demandjoin", on="product_id", memory="400KB", io="unmapped"
        )
        assert sum(batch.num_rows for batch in engine.run(stream)) == 200_000
        asked[exponent] = engine.metrics().front_probes
    assert asked[0.0] < 100_000
    assert asked[1.0] == 200_000
