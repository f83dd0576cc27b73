"""Steps in compiled code: they do what going partition by partition does, and in that order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.algorithms import assembly
from semistream.errors import CorruptPageError
from semistream.kernels import index_steps, scan_steps, steps
from semistream.parts import steps as parts_steps
from semistream.testing import ManualClock, PageReads, assert_same_rows, checked_run, oracle_join

BY_INDEX = ("inlj", "cinlj")
BY_SCAN = ("meshjoin", "rmeshjoin", "cmeshjoin")
BY_QUEUE = ("hybridjoin", "chybridjoin", "xhybridjoin", "oxhybridjoin")


@contextmanager
def partition_by_partition() -> Iterator[None]:
    """As if compiled code could not read this master."""
    no: dict[str, Any] = {"return_value": False}
    looks_up = mock.patch.object(assembly, "can_look_up", **no)
    with mock.patch.object(assembly, "can_step", **no), looks_up:
        yield


@contextmanager
def steps_counted(algorithm: str) -> Iterator[mock.Mock]:
    """Notes the calls of the compiled code that does the steps of an algorithm."""
    module: Any = steps
    if algorithm in BY_SCAN + BY_INDEX:
        module = scan_steps if algorithm in BY_SCAN else index_steps
    with mock.patch.object(module, "advance", wraps=module.advance) as advance:
        yield advance


def master_rows(seed: int = 1) -> pa.Table:
    """Columns of all kinds; most keys have a row, some several, one has more than a page holds."""
    generator = np.random.default_rng(seed)
    keys = np.sort(np.concatenate([generator.choice(4000, 1500, replace=False), np.full(150, 77)]))
    keys = np.sort(np.concatenate([keys, keys[::9]]))
    count = len(keys)
    numbers = generator.integers(0, 1 << 40, count)
    return pa.table(
        {
            "id": keys,
            "number": pa.array(numbers, mask=numbers % 5 == 0),
            "name": [None if n % 7 == 0 else f"name {n}" * (n % 3) for n in numbers.tolist()],
            "flag": pa.array(numbers % 2 == 0, mask=numbers % 11 == 0),
            "small": (numbers % 100).astype(np.int8),
            "note": [f"{n:x}" for n in numbers.tolist()],
            "price": pa.array(numbers % 1000, pa.int64()).cast(pa.decimal128(21, 2)),
        }
    )


def stream_batches(tuples: int = 3000, seed: int = 2, nulls: bool = True) -> list[pa.RecordBatch]:
    """Skewed keys, of which some are not in R; a pause in the middle."""
    generator = np.random.default_rng(seed)
    keys = (4100 * generator.random(tuples) ** 3).astype(np.int64)
    keys[::50] = 77
    numbers = np.arange(tuples)
    late = (numbers > tuples // 3) & (numbers % 13 == 0) & nulls
    batch = pa.record_batch(
        {
            "id": pa.array(keys, mask=(numbers % 97 == 0) & nulls),
            "order": pa.array(numbers, pa.int32()),
            "is_new": pa.array(numbers % 3 == 0, mask=late),
            "tax": pa.array(numbers, pa.int64()).cast(pa.decimal128(21, 2)),
        }
    )
    pieces = [batch.slice(at, 350) for at in range(0, tuples, 350)]
    return [*pieces[:4], batch.slice(0, 0), *pieces[4:]]


COMPILED = ("compiled_iterations", "compiled_probes", "compiled_calls", "compiled_columns")


def fared(
    master: ss.MasterTable, algorithm: str, stream: list[pa.RecordBatch], **arguments: Any
) -> tuple[list[tuple[int, ...]], dict[str, int], list[pa.RecordBatch]]:
    """Partitions in reading order, all counters, and the result."""
    if algorithm in ("hybridjoin", "chybridjoin"):
        arguments = {"look_ups": 0} | arguments
    defaults: dict[str, Any] = {"on": "id", "io": "unmapped", "how": "left"}
    defaults["clock"] = ManualClock()
    engine = ss.engine(master, algorithm=algorithm, **(defaults | arguments))
    with PageReads() as reads:
        found = checked_run(engine, stream)
    counts = engine.metrics().counts()
    for name in (*COMPILED, "decoded_columns", "pieces", "columns", "offers", "reads_ahead"):
        del counts[name]
    return reads.partitions, counts, found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> ss.MasterTable:
    path = tmp_path_factory.mktemp("steps") / "r"
    return ss.MasterTable.from_arrow(master_rows(), path, key="id", page_bytes=4096)


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("pages", [1, 3])
@pytest.mark.parametrize("algorithm", [*BY_QUEUE, *BY_SCAN])
def test_the_order_of_pages_and_all_counters_are_those_of_single_partitions(
    built: ss.MasterTable, algorithm: str, pages: int, how: str
) -> None:
    stream = stream_batches()
    sizes = {"partition_pages": pages, "stream_slots": 300, "memory": "600KB", "how": how}
    with steps_counted(algorithm) as advance:
        reads, counts, found = fared(built, algorithm, stream, **sizes)
    with partition_by_partition():
        reads_before, counts_before, found_before = fared(built, algorithm, stream, **sizes)
    assert advance.called
    assert sum(map(len, reads)) == counts["pages_read"]
    assert reads == reads_before
    assert counts == counts_before
    assert_same_rows(found, found_before)
    assert_same_rows(found, oracle_join(stream, master_rows(), on="id", how=how).rows)


@pytest.mark.parametrize("algorithm", [*BY_QUEUE, *BY_SCAN])
def test_results_that_do_not_fit_a_piece_of_output_at_once(
    built: ss.MasterTable, algorithm: str
) -> None:
    stream = stream_batches(2000)
    sizes = {"partition_pages": 1, "stream_slots": 900, "memory": "160KB"}
    _, counts, found = fared(built, algorithm, stream, **sizes)
    with partition_by_partition():
        _, counts_before, found_before = fared(built, algorithm, stream, **sizes)
    # Single partitions are read ahead, in rare cases in vain.
    assert counts.pop("bytes_read") <= counts_before.pop("bytes_read")
    assert counts == counts_before
    assert_same_rows(found, found_before)


@pytest.mark.parametrize("algorithm", ["hybridjoin", "meshjoin", "rmeshjoin", "inlj"])
def test_a_call_does_many_partitions(built: ss.MasterTable, algorithm: str) -> None:
    stream = [pa.record_batch({"id": np.random.default_rng(3).integers(0, 4000, 5000)})]
    sizes = {} if algorithm == "inlj" else {"partition_pages": 1, "stream_slots": 100}
    with steps_counted(algorithm) as advance:
        reads, _, _ = fared(built, algorithm, stream, memory="2MB", **sizes)
    assert len(reads) > 10 * advance.call_count


def test_the_kernel_is_not_called_while_nothing_waits(built: ss.MasterTable) -> None:
    stream = [pa.record_batch({"id": pa.array([None, None], pa.int64())})]
    with mock.patch.object(steps, "advance", wraps=steps.advance) as advance:
        fared(built, "hybridjoin", stream, memory="1MB")
    assert not advance.called


@pytest.mark.parametrize("io", ["unmapped", "direct"])
def test_a_broken_page_is_named(tmp_path: Path, io: str) -> None:
    master = ss.MasterTable.from_arrow(master_rows(), tmp_path / "r", key="id", page_bytes=4096)
    (file,) = (tmp_path / "r").rglob("*.pages.arrow")
    data = bytearray(file.read_bytes())
    data[int(master.pages.offset[3]) + 900] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptPageError, match="Page 3 of"):
        fared(master, "hybridjoin", stream_batches(), partition_pages=1, memory="1MB", io=io)


@pytest.mark.parametrize("algorithm", BY_SCAN)
def test_a_scan_needs_no_order_of_keys(tmp_path: Path, algorithm: str) -> None:
    rows, stream = shuffled(master_rows()), stream_batches()
    master = ss.MasterTable.from_arrow(
        rows, tmp_path / "r", key="id", page_bytes=4096, layout="given"
    )
    sizes = {"partition_pages": 2, "stream_slots": 300, "memory": "600KB"}
    with steps_counted(algorithm) as advance:
        reads, counts, found = fared(master, algorithm, stream, **sizes)
    with partition_by_partition():
        reads_before, counts_before, _ = fared(master, algorithm, stream, **sizes)
    assert advance.called
    assert (reads, counts) == (reads_before, counts_before)
    assert_same_rows(found, oracle_join(stream, rows, on="id", how="left").rows)


def shuffled(rows: pa.Table) -> pa.Table:
    """The rows of each key together, the keys in no order."""
    keys = rows["id"].to_numpy()
    order = np.random.default_rng(4).permutation(4001)
    return rows.take(np.argsort(order[keys], kind="stable"))


@pytest.mark.parametrize("layout", ["key", "given"])
@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("memory", ["160KB", "600KB"])
@pytest.mark.parametrize("algorithm", BY_INDEX)
def test_look_ups_by_index_read_what_single_pages_do(
    tmp_path: Path, algorithm: str, memory: str, how: str, layout: str
) -> None:
    rows, stream = shuffled(master_rows()), stream_batches(3000)
    master = ss.MasterTable.from_arrow(
        rows, tmp_path / "r", key="id", page_bytes=4096, layout=layout
    )
    sizes = {"memory": memory, "how": how}
    with steps_counted(algorithm) as advance:
        reads, counts, found = fared(master, algorithm, stream, **sizes)
    with partition_by_partition():
        reads_before, counts_before, _ = fared(master, algorithm, stream, **sizes)
    assert advance.called
    assert (reads, counts) == (reads_before, counts_before)
    assert_same_rows(found, oracle_join(stream, rows, on="id", how=how).rows)


@pytest.mark.parametrize("algorithm", ["meshjoin", "rmeshjoin"])
def test_large_partitions_of_a_scan_are_read_ahead(built: ss.MasterTable, algorithm: str) -> None:
    """The same order and counters when a thread reads the next partition meanwhile."""
    stream = stream_batches()
    sizes = {"partition_pages": 3, "stream_slots": 300, "memory": "600KB", "io": "direct"}
    reads, counts, found = fared(built, algorithm, stream, **sizes)
    large = mock.patch.object(parts_steps, "_LARGE_SCANNED", 4096)
    with large, steps_counted(algorithm) as advance:
        ahead, counts_ahead, found_ahead = fared(built, algorithm, stream, **sizes)
    assert advance.call_count > len(ahead)
    assert (ahead, counts_ahead) == (reads, counts)
    assert_same_rows(found, found_ahead)


@pytest.mark.parametrize("large", [4096, 1 << 20], ids=["read ahead", "read in the call"])
@pytest.mark.parametrize("layout", ["key", "given"])
def test_a_scan_names_a_broken_page(tmp_path: Path, layout: str, large: int) -> None:
    rows = master_rows() if layout == "key" else shuffled(master_rows())
    master = ss.MasterTable.from_arrow(
        rows, tmp_path / "r", key="id", page_bytes=4096, layout=layout
    )
    (file,) = (tmp_path / "r").rglob("*.pages.arrow")
    data = bytearray(file.read_bytes())
    data[int(master.pages.offset[3]) + 900] ^= 1
    file.write_bytes(data)
    sizes = {"partition_pages": 2, "memory": "1MB", "io": "direct"}
    patched = mock.patch.object(parts_steps, "_LARGE_SCANNED", large)
    with patched, pytest.raises(CorruptPageError, match="Page 3 of"):
        fared(master, "meshjoin", stream_batches(), **sizes)
