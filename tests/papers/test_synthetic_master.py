"""A synthetic relation counts as a master table built from the same rows does."""

from __future__ import annotations

import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import semistream as ss
from semistream.algorithms.registry import needs_of
from semistream.errors import OptionError
from semistream.relation import Frame
from semistream.workload import ZipfKeys, scattered
from semistream_papers.workloads.synthetic_master import SyntheticMaster

Pair = tuple[SyntheticMaster, ss.MasterTable]

ROWS = 20_000
SIZES = {
    "partition_pages": 3,
    "stream_slots": 2000,
    "chunk_tuples": 15,
    "look_ups": 0,
    "pinned_partitions": 2,
}
"""Fixed, as far as an algorithm has them: the two relations must not be planned apart."""
COUNTED = [
    "arrived",
    "joined",
    "unmatched",
    "outputs",
    "iterations",
    "partitions_read",
    "pages_read",
    "bytes_read",
    "index_pages_read",
    "probes",
    "appends",
    "deletes",
    "matches",
    "front_hits",
    "stream_reads",
]


def thrice(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows // 3


@pytest.fixture(scope="module", params=["row number", "three rows a key"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    rule: dict[str, Any] = {"keys": thrice} if request.param == "three rows a key" else {}
    synthetic = SyntheticMaster(ROWS, row_bytes=120, page_bytes=8192, **rule)
    with synthetic.reader() as reader:
        frame = Frame(reader.frame_bytes(1))
        batches = [reader.read(page, 1, frame)[0] for page in range(synthetic.page_count)]
    path: Path = tmp_path_factory.mktemp("real") / "r.master"
    return synthetic, ss.MasterTable.from_arrow(batches, path, key="key", page_bytes=8192)


def stream(rows: int, domain: int) -> list[pa.RecordBatch]:
    ids = scattered(ZipfKeys(domain, 0.8, seed=3).ranks(rows), domain, seed=3)
    table = pa.table({"key": ids, "tuple": np.arange(rows, dtype=np.int32)})
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=1000)
    return batches


def test_pages_are_those_that_would_be_written(pair: Pair) -> None:
    synthetic, real = pair
    for name in ("first", "last", "rows", "file"):
        found, expected = getattr(synthetic.pages, name), getattr(real.pages, name)
        np.testing.assert_array_equal(found, expected, err_msg=name)
    for name in ("offset", "length"):
        found, expected = getattr(synthetic.pages, name), getattr(real.pages, name)
        np.testing.assert_array_equal(found[:-2], expected[:-2], err_msg=name)
        # The writer copies the rows of the last two pages, which gives them validity bits.
        np.testing.assert_allclose(found[-2:], expected[-2:], atol=64, err_msg=name)
    assert synthetic.widest_row == real.widest_row
    assert synthetic.schema == real.schema


@pytest.mark.parametrize("algorithm", [name for name in ss.ALGORITHMS if needs_of(name).waiting])
def test_a_run_counts_as_on_disk(pair: Pair, algorithm: str) -> None:
    options: dict[str, Any] = {
        name: size for name, size in SIZES.items() if name in needs_of(algorithm).options
    }
    counted = []
    for master in pair:
        engine = ss.engine(
            master, algorithm=algorithm, on="key", memory="2MB", io="direct", **options
        )
        total = sum(batch.num_rows for batch in engine.run(stream(6_000, ROWS)))
        assert total == engine.metrics().outputs
        counted.append({name: asdict(engine.metrics())[name] for name in COUNTED})
    read = [counts.pop("bytes_read") for counts in counted]
    assert counted[0] == counted[1]
    assert read[0] == pytest.approx(read[1], rel=1e-3)
    assert counted[0]["partitions_read"] > 10


@pytest.mark.parametrize("algorithm", [n for n in ss.ALGORITHMS if not needs_of(n).waiting])
def test_look_ups_count_as_on_disk(pair: Pair, algorithm: str) -> None:
    counted = []
    for master in pair:
        engine = ss.engine(master, algorithm=algorithm, on="key", memory="2MB", io="direct")
        list(engine.run(stream(1_000, ROWS)))
        counted.append({name: asdict(engine.metrics())[name] for name in COUNTED})
    assert counted[0] == counted[1]
    assert counted[0]["pages_read"] > 100


def test_a_hundred_million_rows_take_little_memory() -> None:
    master = SyntheticMaster(100_000_000)
    assert master.row_count == 100_000_000
    assert master.pages.nbytes < 12e9 / 1000
    engine = ss.engine(master, algorithm="hybridjoin", on="key", memory="4MB", look_ups=0)
    found = pa.Table.from_batches(engine.run(stream(500, 100_000_000)))
    assert found.num_rows == 500
    assert found["payload"][0].as_py() == bytes(112)


def test_it_says_what_it_cannot_do() -> None:
    master = SyntheticMaster(1_000)
    with pytest.raises(OptionError, match="cannot be changed"):
        master.delete([1])
    with pytest.raises(OptionError, match="more than 8 bytes"):
        SyntheticMaster(10, row_bytes=8)
    engine = ss.engine(
        SyntheticMaster(ROWS), algorithm="hybridjoin", on="key", memory="8MB", look_ups=4
    )
    with pytest.raises(OptionError, match="look_ups=0"):
        list(engine.run(stream(500, ROWS)))


def test_it_is_pickled_as_arithmetic() -> None:
    master = SyntheticMaster(1_000_000)
    data = pickle.dumps(master)
    assert len(data) < 1_000  # its index is not in it
    assert pickle.loads(data).page_count == master.page_count
