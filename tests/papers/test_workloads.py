"""The papers' workloads against what they are said to be."""

import math
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import semistream as ss
from semistream.errors import OptionError, StreamSchemaError
from semistream.workload import ZipfKeys, scattered
from semistream_papers.workloads.bursty import BurstySteps, timed
from semistream_papers.workloads.integral_zipf import IntegralZipfKeys, zipf_rows
from semistream_papers.workloads.keyed_rows import KeyedTuples, master_rows, repeated, spread
from semistream_papers.workloads.locality import LocalKeys
from semistream_papers.workloads.tpch import generate, read_customers, read_orders
from semistream_papers.workloads.weather import (
    LONGITUDES,
    WEATHER,
    StationKeys,
    load_reports,
    weather_reports,
)


def chi_square_excess(observed: NDArray[Any], expected: NDArray[Any]) -> float:
    """Standard deviations that chi-square lies above its mean."""
    freedom = len(expected) - 1
    return (float(((observed - expected) ** 2 / expected).sum()) - freedom) / math.sqrt(2 * freedom)


def integral_shares(domain: int, exponent: float) -> NDArray[np.float64]:
    """What the inverse integral gives each rank."""
    edges = np.arange(1, domain + 2, dtype=np.float64)
    area = np.log(edges) if exponent == 1 else edges ** (1 - exponent) / (1 - exponent)
    shares: NDArray[np.float64] = np.diff(area) / (area[-1] - area[0])
    return shares


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.7])
def test_the_papers_generator_inverts_the_integral(exponent: float) -> None:
    ranks = IntegralZipfKeys(500, exponent, seed=5).ranks(400_000)
    observed = np.bincount(ranks, minlength=500)
    assert len(observed) == 500
    assert abs(chi_square_excess(observed, 400_000 * integral_shares(500, exponent))) < 5


def test_the_integral_reaches_a_domain_of_a_billion() -> None:
    ranks = IntegralZipfKeys(10**9, 1.0, seed=1).ranks(200_000)
    assert ranks.min() == 0
    assert 10**8 < ranks.max() < 10**9
    # ln 10^4.5 of ln 10^9 is half of the stream.
    assert np.mean(ranks < 10**4.5) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("keys", [ZipfKeys, IntegralZipfKeys])
def test_a_fifth_of_the_products_makes_four_fifths_of_the_sales(
    keys: type[ZipfKeys] | type[IntegralZipfKeys],
) -> None:
    ranks = keys(10_000, 1.0, seed=2).ranks(300_000)
    assert np.mean(ranks < 2_000) == pytest.approx(0.83, abs=0.02)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_rows_of_a_skewed_relation_follow_the_law_to_the_row(exponent: float) -> None:
    keys = zipf_rows(200_000, 1_000, exponent)(np.arange(200_000))
    assert (np.diff(keys) >= 0).all()
    counts = np.bincount(keys, minlength=1_000)
    np.testing.assert_allclose(counts, 200_000 * integral_shares(1_000, exponent), atol=1)


def test_rows_of_a_key_by_arithmetic() -> None:
    assert repeated(3)(np.arange(7)).tolist() == [0, 0, 0, 1, 1, 1, 2]
    counts = np.bincount(spread(1_000, 36)(np.arange(1_000)), minlength=36)
    assert set(counts.tolist()) == {27, 28}


def block_means(counts: NDArray[Any], length: int) -> NDArray[np.float64]:
    blocks = counts[: len(counts) // length * length].reshape(-1, length)
    means: NDArray[np.float64] = blocks.mean(axis=1)
    return means


def hurst_exponent(counts: NDArray[Any]) -> float:
    """How self-similar a series is: 0.5 for independent counts, towards 1 for lasting bursts.

    By aggregated variance: the variance of means over m steps falls as m^(2H-2).
    """
    lengths = 2 ** np.arange((len(counts) // 16).bit_length())
    variances = [block_means(counts, length).var() for length in lengths.tolist()]
    return 1 + float(np.polyfit(np.log(lengths), np.log(variances), 1)[0]) / 2


def test_bursts_last_on_several_time_scales() -> None:
    steps = [BurstySteps(seed) for seed in range(4)]
    counts = [one.counts(60_000) for one in steps]
    assert np.mean(counts) == pytest.approx(steps[0].mean, rel=0.1)
    hurst = [hurst_exponent(some) for some in counts]
    assert 0.75 < min(hurst) <= max(hurst) < 0.95
    for length in (1, 16, 256):
        means = [
            some.reshape(-1, 60_000)[0, :59_904].reshape(-1, length).mean(1) for some in counts
        ]
        # Independent counts of this mean would vary by less than 1 / sqrt(1023 × length).
        spread_of_means = np.mean([some.std() for some in means]) / steps[0].mean
        assert spread_of_means > 8 / math.sqrt(steps[0].mean * length)


def test_the_measure_of_bursts_knows_what_is_not_bursty() -> None:
    independent = np.random.default_rng(1).poisson(1_000, 60_000)
    assert hurst_exponent(independent) == pytest.approx(0.5, abs=0.04)


def test_bursty_counts_do_not_depend_on_how_they_are_asked_for() -> None:
    once, twice = BurstySteps(3), BurstySteps(3)
    assert once.counts(500).tolist() == [*twice.counts(123), *twice.counts(377)]


def test_a_timed_stream_has_the_rate_asked_for() -> None:
    tuples = KeyedTuples.zipf(1_000, 1.0, seed=1)
    arrivals = list(timed(BurstySteps(1, streams=5), 2_000.0, tuples.batch, seconds=200.0))
    times = [at for at, _ in arrivals]
    assert times == sorted(times)
    total = sum(batch.num_rows for _, batch in arrivals)
    assert total / times[-1] == pytest.approx(2_000, rel=0.05)


def test_master_rows_and_tuples_have_the_papers_widths(tmp_path: Path) -> None:
    table = pa.Table.from_batches(master_rows(5_000, zipf_rows(5_000, 800, 1.0)))
    assert table.nbytes == 5_000 * 120
    tuples = KeyedTuples.zipf(800, 0.5, seed=4, scatter=True)
    batches = list(tuples.batches(3_000, batch_rows=700))
    assert sum(batch.nbytes for batch in batches) == 3_000 * 20
    again = KeyedTuples.zipf(800, 0.5, seed=4, scatter=True).batch(3_000)
    assert pa.Table.from_batches(batches).to_batches()[0]["key"][:5] == again["key"][:5]
    master = ss.MasterTable.from_arrow(table, tmp_path / "r", key="key", page_bytes=8192)
    engine = ss.engine(master, algorithm="meshjoin", on="key", memory="1MB")
    found = sum(batch.num_rows for batch in engine.run(batches))
    rows_of = np.bincount(table["key"].to_numpy(), minlength=800)
    assert found == sum(int(rows_of[batch["key"].to_numpy()].sum()) for batch in batches)


def test_each_interval_asks_for_its_own_part() -> None:
    keys = LocalKeys(domain=25_000, tuples=250_000, seed=6)
    ranks = np.concatenate([keys.ranks(100_000), keys.ranks(150_000)]).reshape(25, 10_000)
    for interval, part in enumerate(ranks):
        assert part.min() == interval * 1_000
        assert part.max() < (interval + 1) * 1_000
    first = np.bincount(ranks[0], minlength=1_000)
    weights = 1 / np.arange(1, 1_001)
    assert abs(chi_square_excess(first, 10_000 * weights / weights.sum())) < 6
    assert keys.ranks(1)[0] < 1_000


def test_weather_reports_are_128_bytes_and_repeat_their_longitudes() -> None:
    table = pa.Table.from_batches(weather_reports(70_000, seed=1))
    assert table.schema == WEATHER
    assert table.nbytes == 70_000 * 128
    longitudes = table["lon"].to_numpy()
    assert longitudes.min() >= 0
    assert longitudes.max() < LONGITUDES
    weights = 1 / np.sqrt(np.arange(1, LONGITUDES + 1))
    hot = scattered(np.arange(360), LONGITUDES, seed=0)
    share = np.isin(longitudes, hot).mean()
    assert share == pytest.approx(weights[:360].sum() / weights.sum(), rel=0.05)
    hottest = [np.bincount(StationKeys(seed).longitudes(50_000)).argmax() for seed in (1, 2)]
    assert hottest[0] == hottest[1]


def test_real_reports_are_read_by_column(tmp_path: Path) -> None:
    line = "811201001" + " 4523" + "12345" + "72205" + "1" + " 3" + "8" + " 5" + " 4" + "10" + "-1"
    line += " 3" + "450" + "120" + "1" + "0" + " 2" + "-123" + " 456"
    path = tmp_path / "DEC81L"
    path.write_text(line + "\n" + line.replace("12345", "36000") + "\n")
    (batch,) = load_reports(path)
    assert batch["lon"].to_pylist() == [12345, 36000]
    first = {name: batch[name][0].as_py() for name in ("time", "brightness", "lat", "station")}
    assert first == {"time": 81120100, "brightness": 1, "lat": 4523, "station": 72205}
    assert batch["middle_type"][0].as_py() == -1
    assert batch["lunar_illuminance"][0].as_py() == 456
    path.write_text(line + "\nshort\n")
    with pytest.raises(StreamSchemaError, match=r"Line 2 .* has 5 characters"):
        list(load_reports(path))


def test_tpch_customers_and_orders(tmp_path: Path) -> None:
    folder = generate(tmp_path, 0.01)
    customers = pa.Table.from_batches(read_customers(folder))
    assert customers.num_rows == 1_500
    plain = pa.Table.from_batches(read_orders(folder))
    skewed = pa.Table.from_batches(read_orders(folder, exponent=1.0, seed=3))
    assert plain.num_rows == skewed.num_rows == 15_000
    assert skewed.drop_columns("o_custkey") == plain.drop_columns("o_custkey")
    counts = np.sort(np.bincount(skewed["o_custkey"].to_numpy(), minlength=1_501)[1:])[::-1]
    expected = 1 / np.arange(1, 1_501)
    assert counts[:15].sum() / 15_000 == pytest.approx(
        expected[:15].sum() / expected.sum(), abs=0.02
    )
    master = ss.MasterTable.from_arrow(customers, tmp_path / "c", key="c_custkey")
    engine = ss.engine(master, algorithm="chybridjoin", on={"o_custkey": "c_custkey"}, memory="4MB")
    assert sum(batch.num_rows for batch in engine.run(skewed.to_batches())) == 15_000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: IntegralZipfKeys(5, -1.0, 1), "exponent is -1"),
        (lambda: zipf_rows(0, 5, 1.0), "rows is 0"),
        (lambda: BurstySteps(1, streams=0), "streams is 0"),
        (lambda: LocalKeys(10, 100, seed=1), "intervals is 25"),
        (lambda: KeyedTuples(np.arange, tuple_bytes=8), "tuple_bytes is 8"),
        (lambda: generate("x", 0), "scale is 0"),
        (lambda: list(weather_reports(-1, seed=1)), "rows is -1"),
    ],
)
def test_bad_options_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call()


def test_reports_do_not_depend_on_who_reads_them() -> None:
    some = chain.from_iterable(b["lon"].to_pylist() for b in weather_reports(1_000, seed=9))
    assert list(some) == StationKeys(9).longitudes(1_000).tolist()
