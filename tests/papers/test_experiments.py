"""The machinery of the experiments: records, runs, results, claims, charts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semistream.errors import OptionError
from semistream.relation import MasterTable
from semistream.workload import ZipfKeys
from semistream_papers.claims.cached_reasons import joined_share
from semistream_papers.claims.claim import AGREES, DIFFERS, DIRECTION, FITTED, Claim, verdict
from semistream_papers.claims.table import CLAIMS
from semistream_papers.figures.catalogue import FIGURES, chosen
from semistream_papers.figures.drawings import DRAWINGS
from semistream_papers.figures.figure import Figure
from semistream_papers.figures.reproduction import Drawn, Reproduction
from semistream_papers.report.charts import write_chart
from semistream_papers.runs.platforms import MYSQL, RAW_DISK
from semistream_papers.runs.result_file import ResultFile
from semistream_papers.runs.runner import run
from semistream_papers.runs.setting import Setting, scaled

WANTED = {
    "meshjoin": "5a 5b 6a 6b 6c 6d",
    "hybridjoin": "3 6 7a 7b 7c 7d 7e 8a 8b 8c 10 11",
    "xhybridjoin": "3a 3b 3c 3d 4 6a 6b 7a 7b 8",
    "oxhybridjoin": "4 5a 5b 6a 6b 7",
    "skewed": "5a 5b 5c 5d 5e 5f 5g 6 7 8 9a 9b 9c 9d 9e 9f",
}
SMALL = Setting(
    "meshjoin", rows=400_000, memory=8_000_000, partition_rows=2_000, page_bytes=8192, factor=0.02
)


def test_every_figure_of_the_papers_has_a_record() -> None:
    wanted = [f"{paper}-{number}" for paper, some in WANTED.items() for number in some.split()]
    assert list(FIGURES) == wanted


@pytest.mark.parametrize("figure", FIGURES.values(), ids=list(FIGURES))
def test_a_figure_says_what_it_needs(figure: Figure) -> None:
    if figure.drawing:
        assert figure.drawing in DRAWINGS
        return
    for scale in ("smoke", "laptop", "paper"):
        points = list(figure.points(scale))
        assert {point.series for point in points} == {one.name for one in figure.series}
        assert all(point.setting.factor <= 1 for point in points)
    assert len(list(figure.points("smoke"))) <= len(list(figure.points("paper")))


def test_figures_are_chosen_by_name_and_by_paper() -> None:
    assert [one.name for one in chosen(["meshjoin-6b", "oxhybridjoin"])][:2] == [
        "meshjoin-6b",
        "oxhybridjoin-4",
    ]
    assert len(chosen(["all"])) == len(FIGURES)
    with pytest.raises(OptionError, match="no figure 'meshjoin-9z'"):
        chosen(["meshjoin-9z"])


def test_settings_that_differ_in_nothing_that_matters_share_a_run() -> None:
    one = scaled(Setting("meshjoin", 10**6, 10**7, front_percent=75), "smoke")
    other = scaled(Setting("meshjoin", 10**6, 10**7, pinned_rows=900), "smoke")
    assert one.key("priced") == other.key("priced") != one.key("measured")
    assert one.key("priced") != one.with_(memory=0.2).key("priced")
    with pytest.raises(OptionError, match="smoke, laptop, paper"):
        scaled(one, "huge")


def test_a_priced_run_comes_out_the_same_every_time() -> None:
    setting = replace(SMALL, algorithm="chybridjoin", scatter=True)
    first, second = run(setting), run(setting)
    assert first == second
    assert first["hit_share"] > 0.3


@pytest.mark.parametrize("algorithm", ["meshjoin", "hybridjoin"])
def test_the_priced_rate_does_not_depend_on_the_scale(algorithm: str) -> None:
    rates = [
        run(replace(SMALL, algorithm=algorithm, exponent=0.0, factor=factor))["rate"]
        for factor in (0.1, 0.2)
    ]
    assert rates[0] == pytest.approx(rates[1], rel=0.05)


def test_a_meshjoin_run_is_priced_as_counted_by_hand() -> None:
    """All of MESHJOIN's operations follow from its sizes."""
    result = run(replace(SMALL, exponent=0.5))
    sizes, counted, prices = result["sizes"], result["counters"], MYSQL.factors
    partitions = counted["iterations"]
    assert counted["partitions_read"] == partitions
    tuples = result["finished"]
    assert tuples == partitions * sizes["chunk_tuples"]
    seeks = partitions - counted["sequential_reads"]
    seconds = seeks * prices.partition_read + counted["sequential_reads"] * prices.sequential_read
    seconds += counted["bytes_read"] * prices.byte_read
    seconds += counted["probes"] * prices.probe
    seconds += counted["outputs"] * prices.output
    seconds += (counted["appends"] + counted["deletes"]) * prices.append
    seconds += counted["arrived"] * prices.stream_read
    assert result["seconds"] == pytest.approx(seconds, rel=0.02)


def test_a_look_up_fetches_a_row() -> None:
    prices = RAW_DISK.prices("inlj")
    assert (prices.partition_read, prices.byte_read) == (RAW_DISK.look_up, 0.0)
    assert RAW_DISK.prices("meshjoin") is RAW_DISK.factors
    result = run(replace(SMALL, algorithm="inlj", scatter=True, exponent=0.5))
    assert result["rate"] == pytest.approx(1 / 6.7e-3, rel=0.02)


def test_a_measured_run_is_repeated_on_a_real_master(tmp_path: Path) -> None:
    setting = replace(SMALL, algorithm="hybridjoin")
    result = run(setting, "measured", tmp_path)
    assert len(result["rates"]) == 3
    assert result["rate"] == sorted(result["rates"])[1]
    assert list(tmp_path.glob("*.master"))
    # On disk whole pages are read, by compiled steps, which hand out other pieces.
    compiled = ("compiled_iterations", "compiled_probes", "compiled_calls", "compiled_columns")
    read = ("bytes_read", "decoded_columns", "reads_ahead")
    real = (*read, *compiled, "pieces", "columns")
    assert result["counters"] == run(setting)["counters"] | {
        name: result["counters"][name] for name in real
    }


def test_a_measured_run_looks_single_rows_up_in_small_pages(tmp_path: Path) -> None:
    setting = replace(SMALL, algorithm="inlj", scatter=True)
    assert run(setting, "measured", tmp_path)["rate"] > 0
    (path,) = tmp_path.glob("*.master")
    assert MasterTable.open(path).pages.max_length <= 4096


def test_a_measured_run_goes_on_with_a_larger_relation(tmp_path: Path) -> None:
    setting = replace(SMALL, algorithm="cmeshjoin", growth=2.0)
    result = run(setting, "measured", tmp_path)
    assert result["sizes"]["rows"] == 2 * result["before"]["sizes"]["rows"]
    assert result["timeline"]


def test_results_are_found_again_and_half_a_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "priced-smoke.jsonl"
    file = ResultFile(path)
    file.add(SMALL, "priced", {"rate": 5.0})
    with path.open("a") as out:
        out.write('{"key": "cut sho')
    again = ResultFile(path)
    assert len(again) == 1
    assert again.find(SMALL.key("priced")) == {"rate": 5.0}
    assert again.find(SMALL.key("measured")) is None
    again.add(replace(SMALL, seed=1), "priced", {"rate": 6.0})
    assert len(ResultFile(path)) == 2
    line = json.loads(path.read_text().splitlines()[0])
    assert line["setting"]["seed"] == SMALL.seed
    assert {"commit", "versions", "machine"} <= set(line)


def test_a_stopped_reproduction_goes_on(tmp_path: Path) -> None:
    figure = replace(FIGURES["hybridjoin-7e"], base=replace(SMALL, platform="mysql"))
    reproduction = Reproduction(tmp_path, "priced", "smoke")
    missing = reproduction.missing([figure])
    reproduction.run(missing[:1], processes=1)
    again = Reproduction(tmp_path, "priced", "smoke")
    assert again.missing([figure]) == missing[1:]
    with pytest.raises(LookupError, match="has not been run"):
        again.drawn(figure)


def lines(**series: list[tuple[float, float]]) -> Drawn:
    return Drawn(replace(FIGURES["skewed-5a"], log_x=False), series, {})


@pytest.mark.parametrize(
    ("paper", "ours", "above", "says"),
    [
        (2.0, 2.3, True, AGREES),
        (2.0, 1.2, True, DIRECTION),
        (2.0, 0.8, True, DIFFERS),
        (0.5, 0.9, False, DIRECTION),
        (0.5, 1.1, False, DIFFERS),
        (None, 1.01, True, AGREES),
        (None, 0.99, True, DIFFERS),
    ],
)
def test_verdicts_are_computed(paper: float | None, ours: float, above: bool, says: str) -> None:
    claim = Claim("c", ("f",), "here", "it is so", paper, lambda _: ours, above=above)
    assert verdict(claim, {}).says == says


def test_a_number_that_prices_were_derived_from_is_no_agreement() -> None:
    claim = Claim("c", ("f",), "here", "it is so", 2.0, lambda _: 2.0, fitted=True)
    assert verdict(claim, {}).says == FITTED


def test_claims_name_figures_and_differ_in_name() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert {name for claim in CLAIMS for name in claim.figures} <= set(FIGURES)


def test_the_authors_expiry_loses_what_a_simulation_loses() -> None:
    """Removing all tuples of a key with the oldest: counted, one tuple at a time."""
    keys, w, chunks, turns = 2_000, 40, 25, 400
    drawn = ZipfKeys(keys, 1.0, seed=8).ranks(w * turns)
    partition = np.random.default_rng(1).integers(0, chunks, keys)
    waiting: dict[int, int] = {}
    joined = 0
    for turn in range(turns):
        if turn >= chunks:
            for key in drawn[(turn - chunks) * w : (turn - chunks + 1) * w]:
                waiting.pop(int(key), None)
        for key in drawn[turn * w : (turn + 1) * w]:
            waiting[int(key)] = waiting.get(int(key), 0) + 1
        for key, count in waiting.items():
            if partition[key] == turn % chunks:
                joined += count
    # A tuple that stays is met once a cycle; hot ones are met while they are there.
    assert joined_share(w * chunks, chunks, keys) == pytest.approx(joined / (w * turns), abs=0.08)


def test_a_chart_is_the_same_file_for_the_same_data(tmp_path: Path) -> None:
    drawn = lines(CMESHJOIN=[(0.01, 5.0), (0.1, 9.0)], MESHJOIN=[(0.01, 4.0), (0.1, 3.0)])
    paths = [write_chart(drawn, tmp_path / folder) for folder in ("a", "b")]
    for kind in ("svg", "png", "json"):
        assert paths[0][kind].read_bytes() == paths[1][kind].read_bytes()
    assert "CMESHJOIN" in json.loads(paths[0]["json"].read_text())["series"]
