"""Cost factors, and counters priced with them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.cost import CostFactors, priced_rate, priced_seconds
from semistream.cost.factors import shipped_factors
from semistream.cost.pricing import priced_parts
from semistream.errors import OptionError
from semistream.metrics import Metrics, Recorder

COUNTERS = {
    "partition_read": "partitions_read",
    "page_read": "pages_read",
    "byte_read": "bytes_read",
    "index_page_read": "index_pages_read",
    "probe": "probes",
    "hash_probe": "hash_probes",
    "set_code": "set_codes",
    "front_probe": "front_probes",
    "front_chunk": "front_chunks",
    "partition_probe": "partition_probes",
    "append": "appends",
    "delete": "deletes",
    "output": "outputs",
    "stream_read": "stream_reads",
    "iteration": "iterations",
    "shed": "shed",
}


@pytest.mark.parametrize(("factor", "counter"), COUNTERS.items())
def test_every_factor_prices_its_counter(factor: str, counter: str) -> None:
    recorder = Recorder(lambda: 0.0)
    setattr(recorder, counter, 3)
    factors = CostFactors(**{factor: 2.0})
    assert priced_seconds(recorder, factors) == 6.0
    assert priced_parts(recorder, factors)[factor] == 6.0


def test_no_factor_is_forgotten() -> None:
    names = {field.name for field in fields(CostFactors)}
    assert names == {*COUNTERS, "sequential_read", "set_read", "set_byte"}
    assert names == set(priced_parts(Recorder(lambda: 0.0), CostFactors()))


def test_a_sequential_read_has_its_own_price() -> None:
    recorder = Recorder(lambda: 0.0, partitions_read=10, sequential_reads=4)
    assert priced_seconds(recorder, CostFactors(partition_read=1.0, sequential_read=0.5)) == 8.0
    assert priced_seconds(recorder, CostFactors(partition_read=1.0)) == 10.0


def test_reads_of_a_set_have_their_own_price() -> None:
    recorder = Recorder(lambda: 0.0, partitions_read=10, set_reads=4, bytes_read=100, set_bytes=20)
    factors = CostFactors(partition_read=1.0, set_read=0.5, byte_read=0.1, set_byte=0.05)
    assert priced_seconds(recorder, factors) == pytest.approx(6 + 2 + 8 + 1)
    assert priced_seconds(recorder, CostFactors(partition_read=1.0, byte_read=0.1)) == 20.0


def test_the_shipped_factors_say_where_they_come_from() -> None:
    shipped = shipped_factors()
    assert shipped.source
    assert shipped.factors.partition_read > (shipped.factors.set_read or 0) > 0
    assert shipped.factors.sequential_read


def test_bad_factors_are_refused() -> None:
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
    engine = ss.engine(master, algorithm=algorithm, on="id", memory="256KB", partition_pages=2)
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
