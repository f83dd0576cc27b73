"""Pictures and tables: what they say, and that a notebook can show them."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import semistream as ss
from semistream import cli
from semistream.cost.skew_estimate import estimate_skew
from semistream.display.html import fact_table, table
from semistream.display.live import live_display
from semistream.display.svg import bar, line_chart, sparkline
from semistream.rate_curve import RateCurve
from semistream.spark.pipeline.batch_log import Counts
from semistream.spark.pipeline.picture import RecentBatches, pipeline_html
from semistream.spark.pipeline.status import Status
from tests.unit.page.made_up import checkpoint, outcomes

MB = 1 << 20
STEEP = RateCurve.of(
    [(8 * MB, 100.0), (16 * MB, 180.0), (32 * MB, 190.0), (64 * MB, 192.0)], 8 * MB
)


def whole(html: str) -> ElementTree.Element:
    """The HTML, which must be well-formed."""
    return ElementTree.fromstring(f"<div>{html}</div>")


def words(html: str) -> str:
    return " ".join("".join(whole(html).itertext()).split())


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> ss.MasterTable:
    """A master whose column has a name that HTML must not take for its own."""
    rows = pa.table({"id": range(4000), "<b>&": [f"name of number {i}" for i in range(4000)]})
    path = tmp_path_factory.mktemp("goods") / "a&b.master"
    return ss.MasterTable.from_arrow(rows, path, key="id", page_bytes=4096)


@pytest.fixture(scope="module")
def engine(goods: ss.MasterTable) -> ss.Engine:
    made = ss.engine(goods, on="id", memory="300KB")
    keys = pa.record_batch({"id": [i * i % 4100 for i in range(5000)]})
    list(made.run([keys]))
    return made


def test_the_knee_is_where_a_doubling_gives_less_than_a_tenth() -> None:
    assert STEEP.knee == 16 * MB
    assert "16 MB" in STEEP.knee_text()
    rising = RateCurve.of([(8 * MB, 100.0), (16 * MB, 180.0), (32 * MB, 300.0)], 8 * MB)
    assert rising.knee is None
    assert "beyond the chart" in rising.knee_text()
    flat = RateCurve.of([(8 * MB, 100.0), (16 * MB, 101.0), (32 * MB, 101.0)], 16 * MB)
    assert flat.knee_text().startswith("knee: at most 8 MB")


def test_memory_is_the_limit_if_more_would_give_a_tenth() -> None:
    assert STEEP.sentence() == "Memory is the limit: 8 MB more would give +80%."
    enough = RateCurve(STEEP.points, 64 * MB)
    assert enough.sentence() == "Memory is not the limit: 32 MB would do, at 99% of the rate."
    assert RateCurve((), MB).sentence() == "What other budgets would give is not known."


def test_the_rate_between_two_points_lies_between_theirs() -> None:
    assert STEEP.rate(8 * MB) == 100.0
    assert STEEP.rate(8 * MB * 2**0.5) == pytest.approx(140.0)
    assert STEEP.rate(65 * MB) is None


def test_a_terminal_sees_today_and_the_knee() -> None:
    lines = str(STEEP).splitlines()
    axis = next(line for line in lines if "└" in line)
    assert axis.index("▲") < axis.index("◆")
    assert lines[-1] == STEEP.sentence()
    assert "8 MB" in lines[-3]
    assert str(RateCurve((), MB)) == "What other budgets would give is not known."


def test_a_notebook_sees_the_same() -> None:
    told = words(STEEP._repr_html_())
    assert "today 8 MB" in told
    assert "knee 16 MB" in told
    assert STEEP.sentence() in told


def test_a_plans_chart_goes_through_its_own_rate(goods: ss.MasterTable) -> None:
    for tuples in (None, 1000):
        plan = ss.plan(goods, memory="300KB", skew=1.0, task_tuples=tuples)
        chart = plan.chart()
        assert plan.expected is not None
        assert chart.rate(plan.memory) == pytest.approx(plan.expected.rate)
        assert chart.points[-1][0] == 8 * plan.memory
        assert len(chart.points) > len(plan.expected.curve)
        sizes, rates = zip(*chart.points, strict=True)
        assert list(sizes) == sorted(sizes)
        assert rates[-1] >= rates[0]


def test_plan_engine_metrics_and_master_are_shown(goods: ss.MasterTable, engine: ss.Engine) -> None:
    assert engine.plan is not None
    metrics = engine.metrics()
    assert "stream table" in words(engine.plan._repr_html_())
    assert "5,000 tuples" in words(metrics._repr_html_())
    assert f"{metrics.joined:,}" in words(metrics._repr_html_())
    assert "Engine('auto'" in words(engine._repr_html_())
    assert "It has not run yet." in words(ss.engine(goods, on="id", memory="1MB")._repr_html_())
    told = words(goods._repr_html_())
    assert "4,000 rows" in told
    assert "<b>&" in told


def test_a_star_plan_is_shown(goods: ss.MasterTable) -> None:
    lookup = ss.Lookup(goods, on="id", name="goods & co")
    star = ss.star_engine([lookup], memory="2MB")
    star.planned(pa.schema([("id", pa.int64())]))
    list(star.run([pa.record_batch({"id": [1, 2, 3]})]))
    assert star.plan is not None
    assert "goods & co" in words(star.plan._repr_html_())


def test_the_skew_of_a_sample_is_reported() -> None:
    """Half of the tuples have one key, and the others come once each."""
    codes = np.concatenate([np.zeros(1000, np.int64), np.arange(1, 1001)])
    found = estimate_skew(codes, 10_000)
    assert [(size, seen) for size, seen, _ in found.shares()] == [
        (1, 0.5),
        (10, 0.5045),
        (100, 0.5495),
        (1000, 0.9995),
    ]
    assert "1 key:   50.0% of the sample" in found.explain()
    assert "50.0%" in words(found._repr_html_())
    one = estimate_skew(np.zeros(5, np.int64), 10)
    assert "1 key:  100.0%" in one.explain()
    whole(one._repr_html_())


def test_a_pipeline_is_shown() -> None:
    status = Status("a<b", "new", None, None, None, Counts(), Counts(), 0, 0.0, 0, 0)
    recent = RecentBatches()
    assert words(pipeline_html(status, recent)) == "Pipeline a<b: newNo batch yet."
    for one in outcomes(150):
        recent.add(one)
    last = recent.last
    assert last is not None
    status = Status(
        "shop", "running", None, last.number, last.version, last.counts, last.totals,
        last.ended_unmatched, last.seconds, last.waiting_retry, last.waiting_deferred,
    )  # fmt: skip
    told = words(pipeline_html(status, recent))
    assert f"{last.totals.joined:,}" in told
    assert len(recent.rates()) == 120
    assert pipeline_html(status, recent).count("<polyline") == 2


@pytest.mark.parametrize(
    "made",
    [
        line_chart("<&>", [(1.0, 0.0)]),
        line_chart("flat", [(1.0, 0.0), (1.0, 0.0)], log_x=True),
        sparkline("none", []),
        sparkline('"', [1.0]),
        bar("&", {"<part>": 3.0, "other": 0.0}, 0.0, str),
        bar("none", {}, 5.0, str),
        fact_table({"<a>": "&", "none": None}),
        table(["<"], [[">"]]),
    ],
)
def test_whatever_is_shown_is_well_formed(made: str) -> None:
    whole(made)


class Notebook(ModuleType):
    """What of IPython is asked for."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.shown: list[str] = []
        self.HTML = str

    def display(self, html: str, display_id: bool) -> Notebook:
        assert display_id
        self.shown.append(html)
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", made)
    return made


def test_a_live_display_is_renewed_until_all_is_over(notebook: Notebook) -> None:
    states, ended = iter(["new", "running", "finished"]), threading.Event()

    def over() -> Callable[[float], bool]:
        answers = iter([False, True])
        return lambda _: next(answers)

    def html() -> str:
        state = next(states)
        if state == "finished":
            ended.set()
        return state

    assert live_display(html, over())
    assert ended.wait(60)
    assert [notebook.shown.pop(0) for _ in range(2)] == ["new", "running"]


def test_without_a_notebook_there_is_no_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    assert not live_display(lambda: "", lambda _: True)


def test_tune_draws_the_chart_and_reports_the_sample(goods: ss.MasterTable, tmp_path: Path) -> None:
    sample = tmp_path / "sample.parquet"
    pq.write_table(pa.table({"product": [i % 7 for i in range(500)]}), sample)
    run = CliRunner(env={"COLUMNS": "80"})
    asked = ["tune", str(goods.path), "--memory", "300KB", "--chart", "--task-tuples", "1000"]
    result = run.invoke(cli.app, [*asked, "--sample", str(sample), "--on", "product"])
    assert result.exit_code == 0, result.output
    for said in ("skew: exponent", "▲ today: 300 KB", "knee", "Memory is"):
        assert said in result.stdout
    result = run.invoke(cli.app, [*asked, "--sample", str(tmp_path / "none.parquet")])
    assert result.exit_code == 1
    assert "cannot be read as Parquet" in result.stderr


def test_watch_prints_the_status_and_says_what_is_wrong(tmp_path: Path) -> None:
    run = CliRunner(env={"COLUMNS": "80"})
    result = run.invoke(cli.app, ["watch", "--json", str(checkpoint(tmp_path, outcomes(3)))])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["batches"] == 3
    result = run.invoke(cli.app, ["watch", str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert "no checkpoint" in result.stderr
    result = run.invoke(cli.app, ["watch", str(tmp_path / "checkpoint"), "--host", "0.0.0.0"])
    assert result.exit_code == 1
    assert "Without a token" in result.stderr
