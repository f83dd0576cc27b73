"""Shedding under any load: nothing lost, nothing twice, first shed first back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import semistream as ss
from semistream.cost.factors import CostFactors
from semistream.cost.priced_clock import PricedClock
from semistream.parts.shedding import Shedder, Shedding, ShedFile
from semistream.testing import assert_same_rows, oracle_join

ROWS = 120


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [sale for batch in batches for sale in batch.column("sale").to_pylist()]


def products() -> pa.Table:
    return pa.table({"id": np.arange(ROWS), "name": [f"{i:03}" * 100 for i in range(ROWS)]})


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> ss.MasterTable:
    path = tmp_path_factory.mktemp("property") / "products.master"
    return ss.MasterTable.from_arrow(products(), path, key="id", page_bytes=4096)


bursts = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 0.001, 0.01, 1.0]), st.integers(0, 40)),
    min_size=1,
    max_size=25,
)
runs = st.one_of(
    st.tuples(st.sampled_from(["hybridjoin", "chybridjoin"]), st.just("considering")),
    st.tuples(
        st.sampled_from(["hybridjoin", "chybridjoin", "meshjoin"]),
        st.sampled_from(["keep", "random"]),
    ),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bursts=bursts,
    run=runs,
    slots=st.integers(20, 60),
    position=st.sampled_from([0.0, 0.15, 0.6, 1.0]),
    blocks=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_tuple_is_joined_once(
    master: ss.MasterTable,
    bursts: list[tuple[float, int]],
    run: tuple[str, str],
    slots: int,
    position: float,
    blocks: bool,
    seed: int,
) -> None:
    """The driver counts before each step; the oracle counts in the end."""
    algorithm, strategy = run
    rng = np.random.default_rng(seed)
    stream, at, sale = [], 0.0, 0
    for gap, size in bursts:
        at += gap
        keys = (rng.zipf(1.4, size) - 1) % (ROWS + 5)
        stream.append((at, pa.record_batch({"id": keys, "sale": np.arange(sale, sale + size)})))
        sale += size
    clock = PricedClock(CostFactors(page_read=0.005, iteration=0.001))
    engine = ss.engine(
        master,
        algorithm=algorithm,
        io="unmapped",
        on="id",
        how="left",
        memory="1MB",
        clock=clock,
        stream_slots=slots,
        partition_pages=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        shedding = Shedding(
            strategy,
            folder,
            look_up_position=position,
            seed=seed,
            max_bytes=4000 if blocks else "1MB",
            when_full="block" if blocks else "error",
        )
        found = []
        for batch in engine.run_timed(stream, shedding=shedding):
            engine.check()
            found.append(batch)
        assert list(Path(folder).iterdir()) == []
    expected = oracle_join([batch for _, batch in stream], products(), on="id", how="left")
    assert_same_rows(found, expected.rows)
    metrics = engine.metrics()
    assert metrics.arrived == metrics.joined + metrics.unmatched == sale
    assert metrics.shed == metrics.returned


class ShedFileMachine(RuleBasedStateMachine):
    """A shed file against a list, with crashes: all that was not let go of stays."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.lives = 0

    @initialize(max_bytes=st.sampled_from([6_000, 60_000]))
    def begin(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.file = ShedFile.recover(self.place / "0", max_bytes)
        self.model: list[int] = []
        self.taken = 0
        self.next = 0

    @rule(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=3))
    def shed(self, sizes: list[int]) -> None:
        for size in sizes:
            batch = pa.record_batch({"sale": np.arange(self.next, self.next + size)})
            if not self.file.has_room(batch):
                break
            self.file.append(float(self.next), batch)
            self.model += range(self.next, self.next + size)
            self.next += size
        self.file.sync()

    @rule(count=st.integers(0, 150))
    def take(self, count: int) -> None:
        taken = numbers([piece.batch for piece in self.file.take(count)])
        assert taken == self.model[self.taken : self.taken + count]
        self.taken += len(taken)

    @rule(share=st.floats(0.0, 1.0))
    def let_go(self, share: float) -> None:
        count = int(share * self.taken)
        self.file.let_go(count)
        self.model = self.model[count:]
        self.taken -= count

    @rule()
    def crash(self) -> None:
        self.lives += 1
        old, new = self.file.folder, self.place / str(self.lives)
        shutil.copytree(old, new)
        self.file.close()
        shutil.rmtree(old)
        self.file = ShedFile.recover(new, self.max_bytes)
        self.taken = 0

    @rule()
    def close(self) -> None:
        self.file.close()
        self.file = ShedFile.recover(self.file.folder, self.max_bytes)
        self.taken = 0

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "file"):
            self.file.check()
            assert len(self.file) == len(self.model) - self.taken
            assert self.file.taken == self.taken

    def teardown(self) -> None:
        if hasattr(self, "file"):
            rest = numbers([p.batch for p in self.file.take(len(self.file))])
            assert rest == self.model[self.taken :]
            self.file.close()
        shutil.rmtree(self.place)


TestShedFile = ShedFileMachine.TestCase
TestShedFile.settings = settings(max_examples=40, stateful_step_count=25)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stop=st.integers(1, 80), strategy=st.sampled_from(["keep", "random", "considering"]))
def test_a_crash_at_any_step_leaves_what_is_shed_and_not_joined(
    master: ss.MasterTable, stop: int, strategy: str
) -> None:
    """The folder is copied before some step, as a crash would leave it, and joined by a new run.

    Whatever was shed by then has been handed out before, or is found; some of it may be both.
    """
    rng = np.random.default_rng(stop)
    keys = (rng.zipf(1.4, 1200) - 1) % ROWS
    stream = [
        (at / 4000, pa.record_batch({"id": keys[at : at + 20], "sale": np.arange(at, at + 20)}))
        for at in range(0, 1200, 20)
    ]

    def engine() -> ss.Engine:
        clock = PricedClock(CostFactors(page_read=0.005))
        return ss.engine(
            master,
            algorithm="hybridjoin",
            io="unmapped",
            on="id",
            memory="1MB",
            clock=clock,
            stream_slots=30,
            partition_pages=1,
        )

    place = Path(tempfile.mkdtemp())
    left: list[int] = []
    shed: set[int] = set()
    handed: list[int] = []
    before: list[int] = []
    adjust, append, steps = Shedder.adjust, ShedFile.append, 0

    def noted(file: ShedFile, since: float, batch: pa.RecordBatch) -> None:
        append(file, since, batch)
        if not left:
            shed.update(numbers([batch]))

    def crashing(shedder: Shedder) -> None:
        nonlocal steps
        adjust(shedder)
        steps += 1
        if steps == stop:
            shutil.copytree(place / "run", place / "crashed")
            left.append(len(shedder._file) + shedder._file.taken)
            before.extend(handed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shedder, "adjust", crashing)
        patch.setattr(ShedFile, "append", noted)
        patch.setattr("semistream.parts.shedding._FEWEST_LET_GO", 50)
        for batch in engine().run_timed(stream, shedding=Shedding(strategy, place / "run")):
            handed += numbers([batch])
    assert sorted(handed) == list(range(1200))
    if left:
        found = numbers(list(engine().run_timed([], shedding=Shedding("keep", place / "crashed"))))
        assert len(found) == left[0]
        assert shed <= set(before) | set(found)
    shutil.rmtree(place)
