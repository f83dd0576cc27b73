"""Zipf keys against the exact law, the scatter as a bijection, and the shop's rows."""

import itertools
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numpy.typing import NDArray

from semistream.errors import OptionError
from semistream.workload import ZipfKeys, products, sales, scattered, zipf

EXPONENTS = [0.0, 0.3, 0.99, 1.0, 1.01, 2.5, 40.0]
DOMAINS = [1, 2, 3, 4, 5, 7, 16, 17, 1_000, 4_096, 65_537]


@pytest.fixture(params=["table", "hull"])
def law(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to draw, also on domains small enough to count in."""
    if request.param == "hull":
        monkeypatch.setattr(zipf, "_TABLE_LIMIT", 0)


def generalised_harmonic(n: int, exponent: float) -> float:
    """The sum of k^-exponent for k in 1..n: exact up to 1,000, then Euler and Maclaurin."""
    head = min(n, 1_000)
    total = math.fsum(k**-exponent for k in range(1, head + 1))
    if n > head:
        area = (
            math.log(n / head)
            if exponent == 1
            else (n ** (1 - exponent) - head ** (1 - exponent)) / (1 - exponent)
        )
        total += area + (n**-exponent - head**-exponent) / 2
    return total


def chi_square_excess(observed: NDArray[Any], expected: NDArray[Any]) -> float:
    """How many standard deviations chi-square lies above its mean; rare classes are pooled."""
    rare = expected < 10
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    freedom = max(len(expected) - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = (observed - expected) ** 2 / expected
    return (float(np.nansum(terms)) - freedom) / math.sqrt(2 * freedom)


@pytest.mark.usefixtures("law")
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("domain", [1, 2, 50, 3_000])
def test_frequencies_follow_the_law(domain: int, exponent: float) -> None:
    n = 200_000
    observed = np.bincount(ZipfKeys(domain, exponent, seed=11).ranks(n), minlength=domain)
    weights = np.arange(1, domain + 1, dtype=np.float64) ** -exponent
    assert len(observed) == domain
    assert chi_square_excess(observed, n * weights / weights.sum()) < 5


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.3])
@pytest.mark.parametrize("domain", [10_000_000, 10_000_001, 10**12])
def test_large_domains_follow_the_law(domain: int, exponent: float) -> None:
    n = 200_000
    ranks = ZipfKeys(domain, exponent, seed=12).ranks(n)
    magnitudes = range(1, math.ceil(math.log10(domain)))
    edges = [0, 1, 2, 3, 5] + [10**power for power in magnitudes] + [domain]
    observed, _ = np.histogram(ranks, edges)
    cumulated = [0.0] + [generalised_harmonic(edge, exponent) for edge in edges[1:]]
    assert ranks.min() >= 0
    assert ranks.max() < domain
    assert chi_square_excess(observed, n * np.diff(cumulated) / cumulated[-1]) < 5


@pytest.mark.usefixtures("law")
def test_the_sequence_does_not_depend_on_how_it_is_asked_for() -> None:
    whole = ZipfKeys(5_000, 0.8, seed=3).ranks(1_000)
    keys = ZipfKeys(5_000, 0.8, seed=3)
    parts = [keys.ranks(n) for n in (0, 1, 2, 397, 600)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert whole.dtype == np.int64
    assert not np.array_equal(whole, ZipfKeys(5_000, 0.8, seed=4).ranks(1_000))


def test_a_large_domain_needs_no_table() -> None:
    tracemalloc.start()
    try:
        ZipfKeys(2**53, 1.1, seed=1).ranks(10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("domain", DOMAINS)
def test_scatter_is_a_bijection(domain: int) -> None:
    places = scattered(np.arange(domain), domain, seed=5)
    assert places.dtype == np.int64
    np.testing.assert_array_equal(np.sort(places), np.arange(domain))


def test_scatter_is_a_function_of_rank_domain_and_seed() -> None:
    ranks = np.arange(1_000)
    places = scattered(ranks, 12_345, seed=5)
    np.testing.assert_array_equal(scattered(ranks[::-1], 12_345, seed=5), places[::-1])
    assert not np.array_equal(scattered(ranks, 12_345, seed=6), places)


def test_scatter_takes_neighbours_apart() -> None:
    domain = 1_000_000
    hot = scattered(np.arange(10_000), domain, seed=5)
    observed, _ = np.histogram(hot, bins=100, range=(0, domain))
    assert chi_square_excess(observed, np.full(100, 100.0)) < 5
    assert np.mean(np.abs(np.diff(hot)) < 1_000) < 0.01


def test_scatter_leaves_its_input_alone_and_takes_none() -> None:
    ranks = np.arange(10)
    scattered(ranks, 10, seed=1)
    np.testing.assert_array_equal(ranks, np.arange(10))
    assert scattered(np.empty(0, np.int64), 10, seed=1).size == 0


def test_scatter_of_a_huge_domain() -> None:
    places = scattered(np.arange(100_000), 2**53 - 1, seed=5)
    assert len(np.unique(places)) == 100_000
    assert places.min() >= 0
    assert places.max() < 2**53 - 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ZipfKeys(0, 1.0, 1), "domain is 0"),
        (lambda: ZipfKeys(2**53 + 1, 1.0, 1), "domain is"),
        (lambda: ZipfKeys(10, -0.1, 1), "exponent is -0.1"),
        (lambda: ZipfKeys(10, math.nan, 1), "exponent is nan"),
        (lambda: ZipfKeys(10, 1.0, -1), "seed is -1"),
        (lambda: ZipfKeys(10, 1.0, 1).ranks(-1), "n is -1"),
        (lambda: scattered(np.array([10]), 10, 1), "ranks are 10..10"),
        (lambda: scattered(np.array([-1]), 10, 1), "ranks are -1..-1"),
        (lambda: products(-1, 1), "n is -1"),
        (lambda: products(1, -1), "seed is -1"),
        (lambda: sales(-1, ZipfKeys(10, 1.0, 1), 10, 5), "n is -1"),
        (lambda: sales(1, ZipfKeys(10, 1.0, 1), 10, 0), "batch_rows is 0"),
        (lambda: sales(1, ZipfKeys(10, 1.0, 1), 9, 5), "domain of at most 9"),
    ],
)
def test_bad_options_are_named_at_once(call: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace(".", r"\.")):
        call()


def test_products_are_about_120_bytes_wide() -> None:
    table = products(20_000, seed=1)
    table.validate(full=True)
    assert 115 <= table.nbytes / table.num_rows <= 125
    assert 35 <= pc.mean(pc.utf8_length(table["name"])).as_py() <= 45
    assert 17 <= pc.mean(pc.utf8_length(table["brand"])).as_py() <= 23
    assert table["product_id"].to_pylist() == list(range(20_000))
    assert table.schema.field("product_id").type == pa.int64()
    assert table.schema.field("listed").type == pa.date32()
    assert all(column.null_count == 0 for column in table.columns)


def test_a_larger_catalogue_begins_with_the_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    small = products(1_000, seed=1)
    monkeypatch.setattr("semistream.workload.retail._CHUNK_ROWS", 300)
    large = products(2_000, seed=1)
    assert large["name"].num_chunks == 7
    assert large.slice(0, 1_000).equals(small)
    assert not products(1_000, seed=2).equals(small)


def test_no_products_keep_their_schema() -> None:
    assert products(0, seed=1).schema == products(1, seed=1).schema


def test_product_values_stay_in_their_ranges() -> None:
    table = products(20_000, seed=3)
    for column, low, high in [
        ("category", 0, 399),
        ("supplier", 0, 4_999),
        ("price", 1.0, 1_000.0),
        ("weight_g", 20, 19_999),
        ("stock", 0, 1_999),
    ]:
        extremes = pc.min_max(table[column]).as_py()
        assert low <= extremes["min"] < extremes["max"] <= high, column
    assert pc.unique(table["barcode"]).to_pylist() == table["barcode"].to_pylist()
    assert pc.all(pc.equal(pc.utf8_length(table["barcode"]), 13)).as_py()


def test_sales_are_20_bytes_wide() -> None:
    (batch,) = sales(1_000, ZipfKeys(100, 1.0, seed=1), 100, 1_000)
    batch.validate(full=True)
    assert batch.nbytes == 20 * batch.num_rows
    assert batch.schema.types == [pa.int64(), pa.int32(), pa.timestamp("us")]


def test_sales_do_not_depend_on_the_batch_size() -> None:
    def table(batch_rows: int) -> pa.Table:
        return pa.Table.from_batches(sales(1_000, ZipfKeys(80, 1.0, 1), 100, batch_rows))

    assert table(7).equals(table(1_000))
    assert [b.num_rows for b in sales(25, ZipfKeys(80, 1.0, 1), 100, 10)] == [10, 10, 5]
    assert list(sales(0, ZipfKeys(80, 1.0, 1), 100, 10)) == []


def test_scattered_sales_are_the_same_sales_elsewhere() -> None:
    (plain,) = sales(1_000, ZipfKeys(80, 1.0, 1), 100, 1_000, scatter=False)
    (moved,) = sales(1_000, ZipfKeys(80, 1.0, 1), 100, 1_000)
    ranks = plain["product_id"].to_numpy()
    np.testing.assert_array_equal(ranks, ZipfKeys(80, 1.0, 1).ranks(1_000))
    np.testing.assert_array_equal(moved["product_id"].to_numpy(), scattered(ranks, 100, 1))
    assert moved.drop_columns("product_id").equals(plain.drop_columns("product_id"))


def test_an_endless_stream_costs_one_batch() -> None:
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        stream = sales(10**15, ZipfKeys(1_000, 1.0, 1), 1_000, 1_000)
        for _ in itertools.islice(stream, 100):
            assert pa.total_allocated_bytes() - before < 1_000_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
