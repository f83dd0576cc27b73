"""What joins cost, counted, is not more than the committed table says.

Counts of operations do not depend on the machine, nor on which thread was faster, so a change that
makes the engine read more pages is seen here and not in a benchmark weeks later. The table is
`expected.json`, beside this file; `make costs` writes it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import ManualClock

Costs = dict[str, int]

_ROWS: Final = 60_000
_SEED: Final = 12
_PAGE_BYTES: Final = 4096
_RUN_TUPLES: Final = 8_000
_FEW_TUPLES: Final = 1_500
_PAGE_PER_TUPLE: Final = ("inlj", "cinlj")
"""What takes long: it gets few tuples."""
_WARM_UP: Final = 1
_DRAINED: Final = 2

_FIXED: Final = ("arrived", "outputs")
"""What follows from the input: any difference is a defect."""
_LOW: Final = ("pages_read", "partitions_read", "bytes_read", "probes", "appends", "peak_memory")
_HIGH: Final = ("front_hits",)
"""What should be low, and what should be high."""
_TOLERANCE: Final = 0.005
"""Another version of Arrow may write a page with some bytes more or fewer."""


class Table(Protocol):
    """The committed table; see `conftest.py`."""

    writes: bool
    expected: dict[str, Costs]

    def note(self, setting: str, found: Costs, changes: list[str]) -> None: ...


@dataclass(frozen=True)
class Setting:
    """One row of the table: what is joined with what, and how."""

    algorithm: str
    layout: str
    exponent: float
    percent: int
    """Of R, as memory."""
    batch: int = 0
    """Tuples of a micro-batch that is drained, as a task of Spark does; 0 for one long run."""

    def __str__(self) -> str:
        drained = f", batches of {self.batch:,}" if self.batch else ""
        return (
            f"{self.algorithm}, layout {self.layout}, exponent {self.exponent:g}, "
            f"memory {self.percent} %{drained}"
        )

    @property
    def tuples(self) -> int:
        """How many stream tuples a run has."""
        few = self.algorithm in _PAGE_PER_TUPLE
        return self.batch or (_FEW_TUPLES if few else _RUN_TUPLES)

    @property
    def is_busy(self) -> bool:
        """Whether background threads have much to do in it, in little time."""
        is_mesh = (self.algorithm, self.layout, self.exponent) == ("meshjoin", "key", 0.0)
        is_drained = (self.algorithm, self.batch, self.percent) == ("chybridjoin", 3_000, 6)
        return is_drained or (is_mesh and self.percent == 20)


SETTINGS: Final = [
    *(
        Setting(algorithm, layout, exponent, percent)
        for algorithm in ss.ALGORITHMS
        for layout in ("key", "given")
        for exponent in (0.0, 1.0)
        for percent in (6, 20)
    ),
    *(
        Setting(algorithm, layout, 1.0, percent, batch)
        for algorithm in ("hybridjoin", "chybridjoin")
        for layout in ("key", "given")
        for percent in (6, 20)
        for batch in (3_000, 20_000)
    ),
]


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ss.MasterTable]:
    """R by layout. Where rows are in the order given, it is the stream's order of frequency."""
    folder = tmp_path_factory.mktemp("costs")
    keys = _keys_by_rank()
    rows = pa.table(
        {
            "id": keys,
            "name": [f"product {key}" for key in keys.tolist()],
            "price": keys.astype(np.float64),
            "stock": keys * 2,
        }
    )
    return {
        layout: ss.MasterTable.from_arrow(
            rows, folder / f"{layout}.master", key="id", layout=layout, page_bytes=_PAGE_BYTES
        )
        for layout in ("key", "given")
    }


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_costs_are_no_higher_than_the_table_says(
    setting: Setting, masters: dict[str, ss.MasterTable], cost_table: Table
) -> None:
    found = measured(setting, masters[setting.layout])
    known = cost_table.expected.get(str(setting))
    worse, better = compared(known, found) if known else (["it is new: run `make costs`"], [])
    cost_table.note(str(setting), found, [*worse, *better])
    if cost_table.writes:
        return
    assert not worse, _verdict(setting, worse, better)
    if better:
        # Told in pytest's summary, but no failure.
        told = "; ".join(better)
        pytest.skip(f"better: run `make costs` to write the new values. {setting}: {told}")


def test_all_settings_of_the_table_are_measured(cost_table: Table) -> None:
    if not cost_table.writes:
        assert sorted(cost_table.expected) == sorted(map(str, SETTINGS)), "run `make costs`"


@pytest.mark.parametrize("late", [False, True], ids=["read at once", "read at the last moment"])
@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.is_busy], ids=str)
def test_when_threads_read_changes_no_count(
    setting: Setting, late: bool, masters: dict[str, ss.MasterTable]
) -> None:
    master = masters[setting.layout]
    in_background = measured(setting, master)
    with mock.patch.object(ThreadPoolExecutor, "submit", _late if late else _at_once):
        assert measured(setting, master) == in_background


def test_what_is_worse_is_told_apart_from_what_is_better() -> None:
    known = {"arrived": 10, "pages_read": 200, "bytes_read": 1000, "front_hits": 50}
    assert compared(known, known) == ([], [])
    assert compared(known, known | {"bytes_read": 1004}) == ([], [])
    worse, better = compared(known, known | {"pages_read": 250, "bytes_read": 900})
    assert worse == ["pages_read 200 → 250 (+25.0 %; 20 → 25 per tuple)"]
    assert better == ["bytes_read 1,000 → 900 (-10.0 %; 100 → 90 per tuple)"]
    assert compared(known, known | {"front_hits": 40})[0] != []
    assert compared(known, known | {"arrived": 9})[0] != []


def _at_once(pool: ThreadPoolExecutor, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """A read that has ended before anything else goes on."""
    future: Future[Any] = Future()
    future.set_result(work(*arguments))
    return future


class _Late(Future[Any]):
    """A read that begins when it is waited for."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result(self._work())
        return super().result(timeout)


def _late(pool: ThreadPoolExecutor, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    return _Late(partial(work, *arguments))


def measured(setting: Setting, master: ss.MasterTable) -> Costs:
    """Run the join and count."""
    engine = ss.engine(
        master,
        on={"key": "id"},
        how="left",
        memory=_bytes_of(master) * setting.percent // 100,
        algorithm=setting.algorithm,
        io="unmapped",
        clock=ManualClock(),
    )
    total: Costs = dict.fromkeys((*_FIXED, *_LOW, *_HIGH), 0)
    for number, batches in enumerate(_runs(setting)):
        for _ in engine.run(batches):
            pass
        metrics = engine.metrics()
        if number >= (_WARM_UP if setting.batch else 0):
            for name in total:
                total[name] += getattr(metrics, name)
    engine.close()
    return total | {"peak_memory": metrics.peak_memory}


def _verdict(setting: Setting, worse: list[str], better: list[str]) -> str:
    told = f"{setting}: worse in {'; '.join(worse)}."
    if better:
        told += f" Better in {'; '.join(better)}."
    return f"{told} If this is meant, run `make costs` and say why in the commit."


def compared(known: Costs, found: Costs) -> tuple[list[str], list[str]]:
    """What has become worse, and what better, each with both values."""
    worse: list[str] = []
    better: list[str] = []
    for name, old in known.items():
        new = found[name]
        is_off = abs(new - old) > (0 if name in _FIXED else _TOLERANCE * old)
        if is_off:
            is_better = name not in _FIXED and (new < old) == (name in _LOW)
            (better if is_better else worse).append(_change(name, old, new, known["arrived"]))
    return worse, better


def _change(name: str, old: int, new: int, arrived: int) -> str:
    told = f"{(new - old) / old:+.1%}".replace("%", " %") if old else "from nothing"
    if name != "peak_memory":
        told += f"; {old / arrived:.4g} → {new / arrived:.4g} per tuple"
    return f"{name} {old:,} → {new:,} ({told})"


def _runs(setting: Setting) -> Iterator[list[pa.RecordBatch]]:
    """The stream: one long run, or micro-batches that are joined one after the other."""
    generator = np.random.default_rng(_SEED)
    shares = np.cumsum(np.arange(1, _ROWS + 1, dtype=np.float64) ** -setting.exponent)
    keys = _keys_by_rank()
    tuples = setting.tuples
    for _ in range(_WARM_UP + _DRAINED if setting.batch else 1):
        ranks = np.searchsorted(shares, generator.random(tuples) * shares[-1])
        batch = pa.record_batch({"key": keys[ranks], "quantity": ranks.astype(np.int32)})
        yield [batch.slice(at, 2048) for at in range(0, tuples, 2048)]


def _keys_by_rank() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The keys, the most frequent first: in key order frequent ones lie anywhere."""
    return np.random.default_rng(_SEED).permutation(_ROWS)


def _bytes_of(master: ss.MasterTable) -> int:
    return int(master.pages.length.sum())
