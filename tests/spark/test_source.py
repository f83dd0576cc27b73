"""The source of sales: the same rows however they are cut, of the law asked for."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from semistream.errors import OptionError
from semistream.spark import source
from semistream.spark.sales import (
    BLOCK_ROWS,
    SALES,
    SalesReader,
    SourceOptions,
    tuple_ranges,
)
from semistream.spark.source import SemistreamSource, register_source
from semistream.testing import Row, rows_of
from semistream.workload import ZipfKeys, sales

SMALL = {"keys": "500", "seed": "7"}


def made(options: dict[str, str], cuts: list[int]) -> list[Row]:
    """The rows of a stream that is read in ranges with these edges."""
    reader = SalesReader(SourceOptions.parse(options))
    ranges = [tuple_ranges(low, high, 3) for low, high in pairwise(cuts)]
    return rows_of([batch for some in ranges for one in some for batch in reader.read(one)])


@pytest.mark.parametrize("more", [{}, {"scattered": "false"}, {"keys": "20000000"}])
def test_rows_do_not_depend_on_the_cut(seed: int, more: dict[str, str]) -> None:
    rows = 3 * BLOCK_ROWS + 17
    random = np.random.default_rng(seed)
    cuts = [0, *sorted(random.integers(0, rows, 9).tolist()), rows]
    whole = made(SMALL | more, [0, rows])
    assert len(whole) == rows
    assert made(SMALL | more, cuts) == whole
    assert (
        made(SMALL | more, [BLOCK_ROWS + 5, 2 * BLOCK_ROWS + 9])
        == (whole[BLOCK_ROWS + 5 : 2 * BLOCK_ROWS + 9])
    )


def test_another_seed_gives_other_rows() -> None:
    assert made(SMALL, [0, 100]) != made(SMALL | {"seed": "8"}, [0, 100])


def test_blocks_differ() -> None:
    rows = made(SMALL, [0, 2 * BLOCK_ROWS])
    assert [row[:2] for row in rows[:BLOCK_ROWS]] != [row[:2] for row in rows[BLOCK_ROWS:]]


def test_columns_are_those_of_the_workload() -> None:
    keys = ZipfKeys(10, 1.0, 1)
    assert next(sales(3, keys, 10, 3)).schema.equals(SALES)


def test_keys_follow_the_law() -> None:
    keys, rows = 1_000, 8 * BLOCK_ROWS
    options = {"keys": str(keys), "exponent": "1.0", "scattered": "false"}
    ids = np.array([row[0] for row in made(options, [0, rows])])
    law = 1 / np.arange(1, keys + 1)
    expected = rows * law / law.sum()
    found = np.bincount(ids, minlength=keys)
    # The statistic has mean 999 and deviation 45: seven of them is no chance.
    assert ((found - expected) ** 2 / expected).sum() < 999 + 7 * 45
    quantities = {row[1] for row in made(options, [0, 1000])}
    assert quantities == set(range(1, 10))


def test_ranges_cover_and_share_no_block() -> None:
    for start, stop, count in [(0, 1, 4), (5, 9 * BLOCK_ROWS, 4), (3 * BLOCK_ROWS, 10**6, 7)]:
        ranges = [one.value for one in tuple_ranges(start, stop, count)]
        assert (ranges[0][0], ranges[-1][1]) == (start, stop)
        assert len(ranges) <= count
        for (_, end), (begin, _) in pairwise(ranges):
            assert end == begin
            assert end % BLOCK_ROWS == 0
    assert tuple_ranges(7, 7, 3) == []


def test_a_bursty_rate_is_fast_and_slow_in_turn() -> None:
    options = SourceOptions.parse({"rate": "1000", "bursty": "true"})
    arrived = [options.arrived(seconds) for seconds in (0, 2.5, 5, 7.5, 10, 15, 20)]
    assert arrived == [0, 4500, 9000, 9500, 10000, 19000, 20000]
    tuples = np.arange(0, 30_000, 37)
    seconds = options.arrival_seconds(tuples)
    assert np.all(np.diff(seconds) > 0)
    back = [options.arrived(float(second) + 1e-6) for second in seconds]
    assert back == tuples.tolist()


def test_batches_of_a_size_and_bursts_of_them() -> None:
    steady = SourceOptions.parse({"rowsPerBatch": "100"})
    assert [steady.batch_end(n) for n in (0, 100, 250)] == [100, 200, 350]
    bursty = SourceOptions.parse({"rowsPerBatch": "100", "bursty": "true"})
    ends, at = [], 0
    for _ in range(4):
        at = bursty.batch_end(at)
        ends.append(at)
    assert ends == [180, 200, 380, 400]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kees": "3"}, "no option 'kees'.*rowsPerBatch"),
        ({"keys": "0"}, "keys is '0'; give a whole number from 1"),
        ({"keys": "many"}, "keys is 'many'"),
        ({"exponent": "-1"}, "exponent"),
        ({"exponent": "nan"}, "exponent"),
        ({"seed": "1.5"}, "seed is '1.5'; give a whole number"),
        ({"rate": "0"}, "rate"),
        ({"rowsPerBatch": "0"}, "rowsPerBatch"),
        ({"rows": "-3"}, "rows"),
        ({"bursty": "maybe"}, "true or false"),
        ({"rate": "5", "rowsPerBatch": "5"}, "Leave one of them out"),
    ],
)
def test_bad_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SourceOptions.parse(options)


@pytest.fixture(scope="module")
def loaded(spark: SparkSession) -> SparkSession:
    register_source(spark)
    return spark


@pytest.mark.service
def test_no_rows_at_all(loaded: SparkSession) -> None:
    frame = loaded.read.format("semistream").option("rows", 0).load()
    assert frame.count() == 0


@pytest.mark.service
@pytest.mark.parametrize("kind", ["read", "readStream"])
def test_bad_options_fail_the_load(loaded: SparkSession, kind: str) -> None:
    with pytest.raises(AnalysisException, match="keys is '-3'; give a whole number"):
        getattr(loaded, kind).format("semistream").option("keys", -3).load()


@pytest.mark.service
def test_a_batch_read_wants_an_end(loaded: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="Say how many rows"):
        loaded.read.format("semistream").load().count()


@pytest.mark.service
def test_another_schema_is_refused(loaded: SparkSession) -> None:
    reader = loaded.read.format("semistream").schema("a int").option("rows", 3)
    with pytest.raises(AnalysisException, match="this source always has"):
        reader.load().count()


def test_on_an_older_spark_a_stream_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"needs Spark 4\.2 or newer, and this is Spark 4"):
        SemistreamSource(SMALL).streamReader(from_arrow_schema(SALES))
