"""Cost factors, and counters priced with them."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.cost import CostFactors, calibration, priced_rate, priced_seconds
from semistream.cost.factors import shipped_factors
from semistream.cost.pricing import priced_parts
from semistream.counters import FACTORS, PRICES, Price
from semistream.errors import OptionError
from semistream.metrics import Metrics, Recorder


@pytest.mark.parametrize("price", PRICES, ids=lambda price: price.counter)
def test_every_factor_prices_its_counter(price: Price) -> None:
    recorder = Recorder(lambda: 0.0)
    setattr(recorder, price.counter, 3)
    factors = CostFactors(**{price.factor: 2.0})
    assert priced_seconds(recorder, factors) == 6.0
    assert priced_parts(recorder, factors)[price.factor] == 6.0


def test_factors_and_the_table_of_counters_agree() -> None:
    """A counter that is priced has a factor, a factor has a counter, and only these are shipped."""
    # What decompressing takes is made part of a page's price, and the overlap is a share.
    known = {*FACTORS, "lz4_byte", "zstd_byte", "packed_byte", "overlap"}
    assert {field.name for field in fields(CostFactors)} == known
    assert set(asdict(shipped_factors().factors)) == known
    assert list(priced_parts(Recorder(lambda: 0.0), CostFactors())) == list(FACTORS)


def test_what_replaces_a_factor_may_be_left_out_and_nothing_else() -> None:
    replacing = {price.factor: price.instead_of for price in PRICES if price.instead_of}
    left_out = {name for name, price in asdict(CostFactors()).items() if price is None}
    assert left_out == set(replacing)
    assert {"", *FACTORS} >= set(replacing.values())
    assert not set(replacing) & set(replacing.values()), "a replaced factor replaces none"


def test_counters_that_cost_nothing_are_known() -> None:
    """Whoever adds a counter decides whether it costs something."""
    free = set(Recorder(lambda: 0.0).counts()) - {price.counter for price in PRICES}
    assert free == {
        *("arrived", "joined", "unmatched", "left_out", "filtered", "matches"),
        *("in_place_rows", "reads_ahead", "partition_probes"),
    }


def test_every_priced_counter_is_calibrated_or_is_known_not_to_be() -> None:
    measured = {name for names in calibration._MEASURED.values() for name in names}
    assert measured | set(calibration._NOT_MEASURED) == set(FACTORS)
    assert not measured & set(calibration._NOT_MEASURED)


def test_a_sequential_read_has_its_own_price() -> None:
    recorder = Recorder(lambda: 0.0, partitions_read=10, sequential_reads=4)
    assert priced_seconds(recorder, CostFactors(partition_read=1.0, sequential_read=0.5)) == 8.0
    assert priced_seconds(recorder, CostFactors(partition_read=1.0)) == 10.0


def test_reads_of_a_batch_have_their_own_price() -> None:
    recorder = Recorder(
        lambda: 0.0, partitions_read=10, batched_reads=4, bytes_read=100, batched_bytes=20
    )
    factors = CostFactors(partition_read=1.0, batched_read=0.5, byte_read=0.1, batched_byte=0.05)
    assert priced_seconds(recorder, factors) == pytest.approx(6 + 2 + 8 + 1)
    assert priced_seconds(recorder, CostFactors(partition_read=1.0, byte_read=0.1)) == 20.0


def test_steps_in_compiled_code_have_their_own_price(tmp_path: Path) -> None:
    """An iteration costs less than one in Python; a return to Python costs on top."""
    recorder = Recorder(lambda: 0.0, iterations=10, compiled_iterations=8, compiled_calls=3)
    factors = CostFactors(iteration=1.0, compiled_iteration=0.25, compiled_call=0.5)
    assert priced_seconds(recorder, factors) == 2 + 8 * 0.25 + 3 * 0.5
    counted, _ = run("xhybridjoin", tmp_path)
    assert counted.compiled_iterations == counted.iterations > counted.compiled_calls > 1


def test_a_read_costs_more_from_the_disk_than_from_memory() -> None:
    direct, held = (shipped_factors(io).factors for io in ("direct", "unmapped"))
    for read, byte in (("partition_read", "byte_read"), ("batched_read", "batched_byte")):
        of_page = [asdict(f)[read] + 65536 * asdict(f)[byte] for f in (direct, held)]
        assert of_page[0] > of_page[1] > 0, read


@pytest.mark.parametrize("io", ["buffered", "direct"])
def test_the_shipped_factors_say_where_they_come_from(io: str) -> None:
    shipped = shipped_factors(io)
    assert shipped.source
    assert shipped.factors.iteration > (shipped.factors.compiled_iteration or 0) > 0
    assert shipped.factors.sequential_read
    if io == "direct":
        assert shipped.factors.partition_read > (shipped.factors.batched_read or 0) > 0


@pytest.mark.parametrize(("steps", "seconds"), [(10, 100 + 0.3 * 20), (1, 20 + 0.3 * 10)])
def test_what_threads_read_meanwhile_is_mostly_hidden(steps: int, seconds: float) -> None:
    """A join takes the longer of the two, and 0.3 of the shorter."""
    prices = {"batched_read": 1.5, "batched_byte": 0.5, "iteration": 10.0}
    factors = CostFactors(**prices, overlap=0.7)
    counted = Recorder(
        lambda: 0.0,
        iterations=steps,
        partitions_read=10,
        batched_reads=10,
        bytes_read=10,
        batched_bytes=10,
    )
    assert priced_seconds(counted, factors) == pytest.approx(seconds)
    assert sum(priced_parts(counted, factors).values()) == pytest.approx(seconds)
    # For the time of processors, nothing overlaps.
    assert priced_seconds(counted, CostFactors(**prices)) == 10 * steps + 20


def test_of_single_reads_only_those_ahead_are_hidden() -> None:
    factors = CostFactors(partition_read=1.0, byte_read=0.1, iteration=5.0, overlap=0.7)
    counted = Recorder(
        lambda: 0.0, partitions_read=10, reads_ahead=5, bytes_read=100, iterations=10
    )
    assert priced_seconds(counted, factors) == pytest.approx(50 + 20 - 0.7 * 10)


def test_on_a_slower_machine_every_price_is_higher_and_as_much_is_hidden() -> None:
    factors = shipped_factors("direct").factors
    counted = Recorder(
        lambda: 0.0, partitions_read=10, reads_ahead=5, bytes_read=100, iterations=10
    )
    slower = factors.times(3.0)
    assert slower.overlap == factors.overlap > 0
    assert priced_seconds(counted, slower) == pytest.approx(3 * priced_seconds(counted, factors))


def test_bad_factors_are_refused() -> None:
    with pytest.raises(OptionError, match=r"overlap is 1\.5"):
        CostFactors(overlap=1.5)
    with pytest.raises(OptionError, match="probe is -1"):
        CostFactors(probe=-1.0)
    with pytest.raises(OptionError, match=r"no cost factors \['prob'\]"):
        CostFactors.of({"prob": 1.0})


def run(algorithm: str, folder: Path) -> tuple[Metrics, int]:
    """What was counted, and how many partitions R has."""
    rows = 40_000
    table = pa.table({"id": np.arange(rows), "price": np.arange(rows) * 0.5})
    master = ss.MasterTable.from_arrow(table, folder / "m", key="id", page_bytes=4096)
    keys = np.random.default_rng(5).integers(0, rows, 3_000)
    engine = ss.engine(
        master, algorithm=algorithm, io="unmapped", on="id", memory="256KB", partition_pages=2
    )
    list(engine.run([pa.record_batch({"id": keys})]))
    return engine.metrics(), -(-master.page_count // 2)


def test_a_scan_is_sequential_but_for_its_turns(tmp_path: Path) -> None:
    metrics, partitions = run("meshjoin", tmp_path)
    turns = -(-metrics.partitions_read // partitions)
    assert metrics.partitions_read - metrics.sequential_reads == turns < metrics.partitions_read / 9


def test_look_ups_are_not_sequential(tmp_path: Path) -> None:
    metrics, _ = run("hybridjoin", tmp_path)
    assert metrics.partitions_read > 10
    assert metrics.sequential_reads < metrics.partitions_read / 10


def test_a_rate_is_of_finished_tuples(tmp_path: Path) -> None:
    metrics, _ = run("hybridjoin", tmp_path)
    assert priced_rate(metrics, CostFactors(stream_read=0.01)) == pytest.approx(100.0)
    assert priced_rate(metrics, CostFactors()) == 0.0
