"""The status of a pipeline, from what it has left on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from semistream.errors import CheckpointError
from semistream.page.prometheus import metrics_text
from semistream.page.status import Watched
from semistream.spark.pipeline.batch_log import BatchLog, Counts, Outcome
from tests.unit.page.made_up import MB, PARTS, add_line, checkpoint, finish, master, outcomes


def test_of_a_checkpoint_all_batches_of_the_file_of_metrics_are_known(tmp_path: Path) -> None:
    """The log forgets; the file does not."""
    made = outcomes(1200)
    place = checkpoint(tmp_path, made)
    status = Watched(place).status()
    assert status["batches"] == 1200
    assert status["totals"]["joined"] == sum(one.counts.joined for one in made)
    assert status["memory"]["parts"] == PARTS
    assert status["plan"]["expected"]["hit_share"] == 0.58
    (tmp_path / "metrics.jsonl").unlink()
    assert Watched(place).status()["batches"] == 1000


def test_of_a_file_of_metrics_alone_its_batches_are_known(tmp_path: Path) -> None:
    made = outcomes(30)
    checkpoint(tmp_path, made)
    watched = Watched(tmp_path / "metrics.jsonl")
    status = watched.status()
    assert (status["name"], status["state"], status["batches"]) == ("sales", "unknown", 30)
    assert status["totals"]["source"] == sum(one.counts.source for one in made)
    assert status["memory"]["peak"] == made[-1].engine["peak_memory"]
    (more,) = outcomes(1, first=30)
    add_line(tmp_path / "metrics.jsonl", more)
    assert watched.status()["last"]["batch"] == 30


def test_what_ends_later_is_added(tmp_path: Path) -> None:
    made = outcomes(4)
    watched = Watched(checkpoint(tmp_path, made[:2]))
    assert watched.status()["batches"] == 2
    log = BatchLog(tmp_path / "checkpoint" / "semistream")
    for one in made[2:]:
        finish(log, one)
    status = watched.status()
    assert (status["batches"], status["last"]["batch"]) == (4, 3)
    assert watched.status()["batches"] == 4


def test_a_file_that_another_checkpoint_goes_on_with_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for one in (*outcomes(5), *outcomes(2)):
        add_line(path, one)
    assert Watched(path).status()["batches"] == 2


@pytest.mark.parametrize("line", ['{"batch": 1}', "[]", '{"at": "soon", "batch": 0}', "{", "null"])
def test_a_line_that_is_none_is_passed_over(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{line}\n")
    add_line(path, outcomes(1)[0])
    with open(path, "a") as file:
        file.write('{"batch": 1, "at": "2026-')
    assert Watched(path).status()["batches"] == 1


def test_a_place_that_is_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint and no file of metrics"):
        Watched(tmp_path / "nowhere")


def test_a_folder_without_batches_has_a_status(tmp_path: Path) -> None:
    status = Watched(tmp_path).status()
    assert (status["state"], status["batches"], status["series"]) == ("unknown", 0, {})
    json.dumps(status, allow_nan=False)


def test_a_broken_about_file_is_no_reason_to_show_nothing(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, outcomes(3))
    (place / "semistream" / "about.json").write_text("{")
    assert Watched(place).status()["batches"] == 3


def test_the_status_is_json_without_numbers_that_json_has_not(tmp_path: Path) -> None:
    bare = [replace(one, engine={}) for one in outcomes(3)]
    json.dumps(Watched(checkpoint(tmp_path, bare)).status(), allow_nan=False)


def rates(*counts: int) -> list[Outcome]:
    """Batches ten seconds apart, of so many tuples, two seconds long."""
    return [
        Outcome(
            number=i,
            stream_batch=i,
            at=1000.0 + 10 * i,
            version=1,
            counts=Counts(source=count, joined=count),
            totals=Counts(),
            seconds=2.0,
            capacity=None,
            waiting_retry=0,
            waiting_deferred=i,
        )
        for i, count in enumerate(counts)
    ]


def test_rates_are_those_of_hand(tmp_path: Path) -> None:
    """After the first, 800 tuples came in 20 seconds; the batch between has 200 in 2 seconds."""
    place = checkpoint(tmp_path, rates(100, 200, 600), metrics=False)
    status = Watched(place).status()
    assert status["recent"]["arrival_rate"] == pytest.approx(800 / 20)
    assert status["recent"]["service_rate"] == pytest.approx(200 / 2)
    assert status["recent"]["busy"] == pytest.approx(2 / 10)
    assert status["series"]["arrival_rate"] == [None, 20.0, 60.0]
    assert status["series"]["service_rate"] == [50.0, 100.0, 300.0]
    assert status["series"]["lag_seconds"] == [None, 12.0, 12.0]
    assert status["lag"]["tuple_seconds"] == 12.0


def test_the_first_slow_batch_does_not_speak_for_the_others(tmp_path: Path) -> None:
    made = rates(*[100] * 9)
    made[0] = replace(made[0], seconds=60.0)
    status = Watched(checkpoint(tmp_path, made, metrics=False)).status()
    assert status["recent"]["batch_seconds"] == 2.0
    assert status["recent"]["service_rate"] == 50.0


def test_points_are_the_true_rates_of_their_batches(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, rates(100, 200, 600, 0, 1000, 2000), metrics=False)
    series = Watched(place).status(points=3)["series"]
    assert series["at"] == [1010.0, 1030.0, 1050.0]
    # The batch without tuples of the source is none of those between which time is counted.
    assert series["arrival_rate"] == [20.0, 60.0, 100.0]
    assert series["service_rate"] == [75.0, 150.0, 750.0]
    assert series["joined"] == [150.0, 300.0, 1500.0]
    assert series["waiting_deferred"] == [1.0, 3.0, 5.0]
    last = Watched(place).status(points=3, last=2)["series"]
    assert last["arrival_rate"] == [50.0, 200.0]
    assert last["lag_seconds"] == [22.0, 12.0]


def test_a_slow_batch_is_seen_among_ten_thousand(tmp_path: Path) -> None:
    made = rates(*[100] * 500)
    made[321] = replace(made[321], seconds=99.0)
    place = checkpoint(tmp_path, made, metrics=False)
    assert max(Watched(place).status(points=7)["series"]["longest_seconds"]) == 99.0


def test_masters_are_told_with_their_history_and_lag(tmp_path: Path) -> None:
    master(tmp_path / "goods.master", versions=4)
    made = [replace(one, version=2) for one in outcomes(5)]
    (found,) = Watched(checkpoint(tmp_path, made)).status()["masters"]
    assert (found["version"], found["newest"], found["behind"]) == (2, 4, 2)
    assert [one["operation"] for one in found["history"]] == ["upsert 7 keys"] * 3 + ["build"]
    assert found["rows"] == 2000


def test_the_forecast_says_what_more_memory_gives(tmp_path: Path) -> None:
    master(tmp_path / "goods.master", rows=20_000)
    status = Watched(checkpoint(tmp_path, outcomes(8))).status(wait=True)
    sizes = [size for size, _ in status["curve"]["points"]]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 8 * 64 * MB
    assert status["curve"]["memory"] == 64 * MB
    assert any(one["text"].startswith("Memory is") for one in status["warnings"])


def test_flinks_names_count_what_ours_do(tmp_path: Path) -> None:
    made = outcomes(12)
    watched = Watched(checkpoint(tmp_path, made))
    hits = sum(one.engine["front_hits"] for one in made)
    asked = sum(one.counts.joined + one.counts.unmatched for one in made)
    text = metrics_text(watched)
    for name, value in (
        ("hitCount", hits),
        ("missCount", asked - hits),
        ("loadCount", sum(one.engine["pages_read"] for one in made)),
        ("numCachedBytes", PARTS["front stage"]),
        ("joined_tuples_total", made[-1].totals.joined),
        ("up", 0),
    ):
        assert f'semistream_{name}{{pipeline="sales"}} {float(value)!r}\n' in text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
