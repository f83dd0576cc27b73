"""The disk buffer against the page file itself, read as an ordinary Arrow file."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semistream.budget import MemoryBudget
from semistream.metrics import Recorder
from semistream.parts.disk_buffer import DiskBuffer, Partition, disk_bytes
from semistream.parts.join_shape import JoinShape
from semistream.relation import MasterTable
from semistream.testing import ManualClock

LOWEST, HIGHEST = -(2**63), 2**63 - 1
KEYS = st.integers(0, 40) | st.sampled_from([LOWEST, LOWEST + 1, -1, HIGHEST - 1, HIGHEST])
RUNS = st.dictionaries(KEYS, st.integers(1, 9) | st.integers(10, 40), max_size=14)
"""How many rows each key has; a page holds about seven."""
PADDING = "p" * 400


class DiskMachine(RuleBasedStateMachine):
    """Reads by number and by key, with and without reading ahead, some partitions pinned."""

    @initialize(
        runs=RUNS,
        layout=st.sampled_from(["key", "given"]),
        per_partition=st.integers(1, 4),
        pinned=st.integers(0, 3),
        io=st.sampled_from(["buffered", "direct"]),
        frames=st.integers(2, 4),
        data=st.data(),
    )
    def begin(
        self,
        runs: dict[int, int],
        layout: str,
        per_partition: int,
        pinned: int,
        io: str,
        frames: int,
        data: st.DataObject,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp())
        keys = [key for key, count in runs.items() for _ in range(count)]
        keys = [keys[i] for i in np.random.default_rng(len(keys)).permutation(len(keys))]
        table = pa.table(
            {
                "id": pa.array(keys, pa.int64()),
                "n": pa.array(range(len(keys)), pa.int64()),
                "padding": [PADDING] * len(keys),
            }
        )
        self.master = MasterTable.from_arrow(
            table, self.folder / "r", key="id", page_bytes=4096, layout=layout
        )
        self.per_partition = per_partition
        self.read_model(per_partition)
        self.io, self.layout, self.frames = io, layout, frames
        self.recorder, self.budget = Recorder(ManualClock()), MemoryBudget(1 << 24)
        stream = pa.schema([("id", pa.int64()), ("sale", pa.int64())])
        pinned = min(pinned, len(self.rows))
        columns = data.draw(st.sampled_from([["n", "padding"], ["n"], ["padding", "n"]]))
        shape = JoinShape(stream, self.master, "id", "inner", columns)
        grant = self.budget.grant("disk buffer")
        self.disk = DiskBuffer(
            self.master, shape, per_partition, io, grant, self.recorder, pinned, frames
        )
        assert self.budget.used == disk_bytes(self.master, per_partition, pinned, frames)
        self.current: Partition | None = None
        self.read_count = pinned

    def read_model(self, per_partition: int) -> None:
        """The rows (key, n) of each partition, and the partitions of each key."""
        (path,) = (self.folder / "r" / "data").glob("*.pages.arrow")
        with pa.ipc.open_file(path) as file:
            pages = [file.get_batch(i) for i in range(file.num_record_batches)]
        self.pages_of: dict[int, list[int]] = {}
        for number, page in enumerate(pages):
            for key in dict.fromkeys(page.column("id").to_pylist()):
                self.pages_of.setdefault(key, []).append(number)
        self.rows: list[list[tuple[int, int]]] = []
        for first in range(0, len(pages), per_partition):
            table = pa.Table.from_batches(pages[first : first + per_partition])
            self.rows.append(
                list(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))
            )
        self.per_partition = per_partition

    def partitions_of(self, key: int) -> list[int]:
        pages = self.pages_of.get(key, [])
        return sorted({page // self.per_partition for page in pages})

    def region(self, key: int) -> int:
        """In key order: the partition in whose range a key lies, whether it exists or not."""
        firsts = [rows[0][0] for rows in self.rows]
        return max(sum(first <= key for first in firsts) - 1, 0)

    def is_right(self, partition: Partition, number: int) -> None:
        rows = self.rows[number]
        assert partition.number == number
        assert partition.codes.tolist() == [key for key, _ in rows]
        assert partition.batch.column("n").to_pylist() == [n for _, n in rows]
        whole = [self.partitions_of(key) == [number] for key, _ in rows]
        marked = [partition.start <= row < partition.stop for row in range(len(rows))]
        assert marked == whole
        for key in dict.fromkeys(key for key, _ in rows):
            first, last = partition.partial_rows(key)
            crossing = [row for row, (other, _) in enumerate(rows) if other == key]
            expected = [] if self.partitions_of(key) == [number] else crossing
            assert list(range(first, last)) == expected
        if self.layout == "key":
            self.settles_the_right_keys(partition, number)

    def settles_the_right_keys(self, partition: Partition, number: int) -> None:
        """low..high are the keys of its range that no other partition has rows of."""
        keys = {LOWEST, HIGHEST} | set(self.pages_of)
        keys |= {min(key + 1, HIGHEST) for key in keys} | {max(key - 1, LOWEST) for key in keys}
        for key in keys:
            if self.region(key) == number:
                settled = partition.low <= key <= partition.high
                assert settled == (self.partitions_of(key) in ([], [number])), key

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.rows) - 1))
        self.current = self.disk.read(number)
        self.read_count += number >= len(self.disk.pinned)
        self.is_right(self.current, number)

    @rule(key=KEYS)
    def load(self, key: int) -> None:
        """Every partition that has rows of the key, in order; at most one for an absent key."""
        found = []
        for partition in self.disk.load(key):
            found.append(partition.number)
            self.current = partition
            self.read_count += partition.number >= len(self.disk.pinned)
            self.is_right(partition, partition.number)
        if key in self.pages_of:
            assert found == self.partitions_of(key)
        else:
            assert found in ([], [self.region(key)] if self.layout == "key" and self.rows else [])

    @rule(keys=st.lists(KEYS, max_size=8))
    def spans(self, keys: list[int]) -> None:
        codes = np.array(keys, np.int64)
        codes.flags.writeable = False
        first, last = self.disk.spans(codes)
        for key, low, high in zip(keys, first.tolist(), last.tolist(), strict=True):
            pages = self.pages_of.get(key)
            if pages is not None:
                assert list(range(low, high + 1)) == pages
            else:
                assert low >= high
            span = self.disk.span(key)
            assert list(span) == sorted({p // self.per_partition for p in range(low, high + 1)})

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def read_ahead(self, data: st.DataObject) -> None:
        """Announced, and read next or not: neither may spoil the partition now in use."""
        self.disk.read_ahead(data.draw(st.integers(0, len(self.rows) - 1)))

    @rule(key=st.none() | KEYS)
    def look_ahead(self, key: int | None) -> None:
        self.disk.look_ahead(key)

    @invariant()
    def what_is_in_memory_is_right(self) -> None:
        if not hasattr(self, "disk"):
            return
        self.budget.check()
        assert self.disk.partitions == len(self.rows)
        for number, partition in enumerate(self.disk.pinned):
            self.is_right(partition, number)
        if self.current is not None:
            self.is_right(self.current, self.current.number)
        assert self.recorder.partitions_read == self.read_count
        if self.layout == "key":
            firsts = [rows[0][0] for rows in self.rows]
            assert self.master.pages.fences(self.per_partition).tolist() == firsts

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.close()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


TestDiskBuffer = DiskMachine.TestCase
TestDiskBuffer.settings = settings(max_examples=120, stateful_step_count=25)
