"""`MasterTable.sync`: each format against a replay, streams that stop and go on, and its errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import semistream as ss
from semistream.errors import OptionError, SemistreamError, StaleMasterError
from semistream.relation.following import note_fresh
from semistream.spark.sync import sync as module
from tests.differential.change_replay import Change, history, newest, stored
from tests.differential.test_following import batches, random_changes

EMPTY = pa.table({"id": pa.array([], pa.int64()), "value": pa.array([], pa.string())})
Feed = Callable[[SparkSession, Sequence[Change]], DataFrame]


def changes_feed(spark: SparkSession, some: Sequence[Change]) -> DataFrame:
    """As Delta's change data feed: an update has two rows, and the order of rows means nothing."""
    rows: list[tuple[Any, ...]] = []
    for one in some:
        if one.value is None:
            rows.append((one.key, "was", "delete", one.sequence))
        elif one.sequence % 3:
            rows.append((one.key, one.value, "update_postimage", one.sequence))
            rows.append((one.key, "was", "update_preimage", one.sequence))
        else:
            rows.append((one.key, one.value, "insert", one.sequence))
    schema = "id long, value string, _change_type string, _commit_version long"
    return spark.createDataFrame(rows, schema)


def iceberg_feed(spark: SparkSession, some: Sequence[Change]) -> DataFrame:
    """As a changelog view: its ordinals begin at 0, and the ids of snapshots have no order."""
    first = min(one.sequence for one in some)
    rows = [
        (
            one.key,
            one.value,
            "DELETE" if one.value is None else ["INSERT", "UPDATE_AFTER"][one.sequence % 2],
            one.sequence - first,
            (one.sequence * 2654435761) % (1 << 32),
        )
        for one in some
    ]
    schema = "id long, value string, _change_type string, _change_ordinal int"
    return spark.createDataFrame(rows, f"{schema}, _commit_snapshot_id long")


def debezium_feed(spark: SparkSession, some: Sequence[Change]) -> DataFrame:
    """As Debezium's events; a delete has only the key in `before`, and a tombstone follows."""
    rows: list[tuple[Any, ...]] = []
    for one in some:
        source, at = (one.sequence,), 1_700_000_000_000 + one.sequence
        if one.value is None:
            rows += [("d", (one.key, None), None, source, at), (None, None, None, None, None)]
        else:
            op = "cur"[one.sequence % 3]
            rows.append((op, None, (one.key, one.value), source, at))
    row = "struct<id: long, value: string>"
    schema = f"op string, before {row}, after {row}, source struct<lsn: long>, ts_ms long"
    return spark.createDataFrame(rows, schema)


def topic_feed(spark: SparkSession, some: Sequence[Change]) -> DataFrame:
    """As a compacted topic: a null value deletes, and the offset says what came last."""
    rows = [
        ((one.key,), None if one.value is None else (one.value,), 0, one.sequence) for one in some
    ]
    schema = "key struct<id: long>, value struct<value: string>, partition int, offset long"
    return spark.createDataFrame(rows, schema)


FEEDS: dict[str, tuple[Feed, bool]] = {
    "changes": (changes_feed, True),
    "debezium": (debezium_feed, True),
    # A view has snapshots in their order, so whole batches come in order.
    "iceberg": (iceberg_feed, False),
    "upsert": (topic_feed, True),
}


def rows_in(master: ss.MasterTable) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in stored(master).to_pylist()}


@pytest.mark.parametrize("format", FEEDS)
def test_a_format_is_recognised_and_followed(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    rng = np.random.default_rng(11)
    changes = random_changes(rng, 40, 8)
    feed, shuffled = FEEDS[format]
    if format == "upsert":
        # An offset belongs to one record.
        changes = [*{one.sequence: one for one in changes}.values()]
    parts = batches(rng, changes)
    if not shuffled:
        parts = [changes[:15], changes[10:30], changes[10:30], changes[20:]]
    master = ss.MasterTable.from_arrow(EMPTY, tmp_path / "m", key="id")
    seen: list[Change] = []
    for part in [one for one in parts if one][-4:]:
        seen += part
        done = master.sync(feed(spark, part))
        assert rows_in(done.master) == {*newest(seen).items()}
    assert done._terms.shape.format == format
    assert done.status().lag_seconds >= 0.0
    assert master.sync(feed(spark, seen if shuffled else changes)).status().fresh == 0


def test_a_topic_of_keys_and_values(spark: SparkSession, tmp_path: Path) -> None:
    master = ss.MasterTable.from_arrow(EMPTY, tmp_path / "m", key="id")

    def topic(*messages: tuple[str, str | None]) -> DataFrame:
        rows = [(key, value, 0, place) for place, (key, value) in enumerate(messages)]
        frame = spark.createDataFrame(rows, "key string, value string, partition int, offset long")
        return ss.parsed(frame, "value string", key="id long")

    good = [('{"id": 1}', '{"value": "a"}'), ('{"id": 2}', '{"value": "b"}'), ('{"id": 1}', None)]
    assert rows_in(master.sync(topic(*good)).master) == {(2, "b")}
    for bad in (('{"id": 2}', "{broken"), ("broken", '{"value": "c"}')):
        with pytest.raises(OptionError, match=r"could not be parsed: \{?broken"):
            master.sync(topic(*good, bad))
    assert ss.MasterTable.latest_version(tmp_path / "m") == 2


def test_a_key_that_an_update_has_changed_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(1, "a", "update_preimage", 7), (2, "a", "update_postimage", 7)]
    schema = "id long, value string, _change_type string, _commit_version long"
    start = pa.table({"id": [1], "value": ["a"]})
    master = ss.MasterTable.from_arrow(start, tmp_path / "m", key="id")
    assert rows_in(master.sync(spark.createDataFrame(rows, schema)).master) == {(2, "a")}


def test_an_event_that_has_changed_the_key_removes_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    row = "struct<id: long, value: string>"
    schema = f"op string, before {row}, after {row}, source struct<lsn: long>"
    start = pa.table({"id": [1, 3, 5], "value": ["a", "c", "e"]})
    master = ss.MasterTable.from_arrow(start, tmp_path / "m", key="id")
    rows = [
        ("u", (1, None), (2, "a"), (7,)),
        # Two keys that change places, in one commit.
        ("u", (3, "c"), (4, "c"), (8,)),
        ("u", (4, "d"), (3, "d"), (8,)),
        ("u", (5, "e"), (5, "f"), (9,)),
    ]
    done = master.sync(spark.createDataFrame(rows, schema))
    assert rows_in(done.master) == {(2, "a"), (3, "d"), (4, "c"), (5, "f")}
    assert (done.status().changes, done.status().deleted) == (4, 1)


@pytest.mark.parametrize("offsets", [True, False])
def test_of_two_changes_with_one_sequence_it_is_always_the_same_that_counts(
    spark: SparkSession, tmp_path: Path, offsets: bool
) -> None:
    rows = [(1, f"value {i}", 7, i) for i in range(20)]
    found = set()
    for turn in range(3):
        some = rows[turn * 5 :] + rows[: turn * 5]
        frame = spark.createDataFrame(some, "id long, value string, at long, offset long")
        master = ss.MasterTable.from_arrow(EMPTY, tmp_path / str(turn), key="id")
        frame = frame.repartition(turn + 1)
        done = master.sync(frame if offsets else frame.drop("offset"), sequence_by="at")
        found |= rows_in(done.master)
    assert len(found) == 1
    assert not offsets or found == {(1, "value 19")}


def test_a_polled_table_says_itself_which_rows_are_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    master = ss.MasterTable.from_arrow(EMPTY, tmp_path / "m", key="id")
    rows = [(1, "a", 5, False), (1, "b", 6, False), (2, "c", 1, False), (2, "c", 2, True)]
    frame = spark.createDataFrame(rows, "id long, value string, updated_at long, gone boolean")
    done = master.sync(frame, sequence_by="updated_at", apply_as_deletes="gone")
    assert rows_in(done.master) == {(1, "b")}


@pytest.mark.parametrize("stored_as", ["scd1", "scd2"])
def test_many_changes_are_built_not_merged(
    spark: SparkSession, tmp_path: Path, stored_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    changes = random_changes(rng, 60, 12)
    empty = EMPTY
    for name in () if stored_as == "scd1" else ("since", "until"):
        empty = empty.append_column(name, pa.array([], pa.int64()))
    valid = None if stored_as == "scd1" else ("since", "until")
    master = ss.MasterTable.from_arrow(empty, tmp_path / "m", key="id", valid=valid, filter_bits=8)
    late, first = changes[20:40], [*changes[:20], *changes[40:]]
    for part, most in ((first, 100), (late, 2)):
        monkeypatch.setattr(module, "_MOST_MERGED", most)
        done = master.sync(changes_feed(spark, part), stored_as=stored_as)
    assert [one.operation for one in done.master.history()][1:] == [
        "sync 12 keys",
        "sync, all rows",
    ]
    expected = history(changes) if stored_as == "scd2" else {*newest(changes).items()}
    assert rows_in(done.master) == expected
    assert done.master.filter_bytes
    monkeypatch.setattr(module, "_MOST_MERGED", 100)
    assert master.sync(changes_feed(spark, changes), stored_as=stored_as).status().fresh == 0


def test_a_stream_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    changes = random_changes(rng, 60, 9)
    master = ss.MasterTable.from_arrow(EMPTY, tmp_path / "m", key="id")
    for number, part in enumerate(np.array_split(np.arange(len(changes)), 2)):
        some = [changes[i] for i in rng.permutation(part)]
        frame = changes_feed(spark, some).coalesce(1)
        frame.write.mode("append").parquet(str(tmp_path / "feed"))
        stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "feed"))
        running = master.sync(
            stream,
            checkpoint=tmp_path / "checkpoint",
            trigger="availableNow",
            metrics=tmp_path / "metrics.jsonl",
        )
        assert running.await_termination(120)
        assert running.status().state == "finished"
        assert running.status().version == 2 + number
    assert rows_in(running.master) == {*newest(changes).items()}
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["version"] for line in lines] == [2, 3]
    assert sum(json.loads(line)["changes"] for line in lines) >= len(changes)
    # Spark runs a micro-batch again whose end it has not noted: it is known, and does nothing.
    for name in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        name.unlink()
    again = master.sync(stream, checkpoint=tmp_path / "checkpoint", trigger="availableNow")
    assert again.await_termination(120)
    assert (again.status().version, again.status().changes) == (3, 0)


def test_a_batch_that_cannot_be_applied_stops_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    master = ss.MasterTable.from_arrow(EMPTY, tmp_path / "m", key="id")
    schema = "id long, value string, _change_type string, _commit_version long"
    spark.createDataFrame([(1, "a", "merge", 1)], schema).write.parquet(str(tmp_path / "feed"))
    stream = spark.readStream.schema(schema).parquet(str(tmp_path / "feed"))
    running = master.sync(stream, checkpoint=tmp_path / "c", trigger="availableNow")
    with pytest.raises(OptionError, match=r"the change type merge; known are insert"):
        running.await_termination(120)
    assert running.status().state == "failed"
    assert ss.MasterTable.latest_version(tmp_path / "m") == 1


SCHEMA = "id long, value string, _change_type string, _commit_version long"
BAD: dict[str, tuple[str, list[tuple[Any, ...]], dict[str, Any], str]] = {
    "no order": ("id long, value string", [], {}, "Give sequence_by="),
    "no such order": (SCHEMA, [], {"sequence_by": "lsn"}, "sequence_by='lsn' is no column"),
    "no key": ("value string, n long", [], {"sequence_by": "n"}, "no id, which the master has"),
    "another type": (
        "id long, value long, n long",
        [],
        {"sequence_by": "n"},
        "'value' of the changes has type int64, and that of the master string",
    ),
    "unknown change": (SCHEMA, [(1, "a", "merge", 1)], {}, "the change type merge"),
    "no row": (
        "op string, after struct<id long, value string>, before struct<id long>, n long",
        [("u", None, (1,), 1)],
        {"sequence_by": "n"},
        "an event with op u and no row in after",
    ),
    "null key": (SCHEMA, [(None, "a", "insert", 1)], {}, "a null in the key column 'id'"),
    "null order": (SCHEMA, [(1, "a", "insert", None)], {}, "a null in '_commit_version'"),
    "format": (SCHEMA, [], {"format": "avro"}, "format='avro' is not known"),
    "no event": (SCHEMA, [], {"format": "debezium"}, "needs the column 'after'"),
    "deletes": (SCHEMA, [], {"apply_as_deletes": "value"}, "'value' is of type string, and must s"),
    "no history": (SCHEMA, [], {"stored_as": "scd2"}, "was built with valid=None"),
    "stored as": (SCHEMA, [], {"stored_as": "scd3"}, "stored_as='scd3' is not known"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_followed_is_a_clear_error(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    schema, rows, options, message = BAD[case]
    master = ss.MasterTable.from_arrow(EMPTY, tmp_path / "m", key="id")
    with pytest.raises(SemistreamError, match=message.replace("(", r"\(")):
        master.sync(spark.createDataFrame(rows, schema), **options)
    assert ss.MasterTable.latest_version(tmp_path / "m") == 1


def test_another_order_than_before_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    master = ss.MasterTable.from_arrow(EMPTY, tmp_path / "m", key="id")
    frame = spark.createDataFrame([(1, "a", "insert", 1)], SCHEMA)
    master.sync(frame)
    with pytest.raises(OptionError, match="follows its source by sequence_by="):
        master.sync(frame, sequence_by="_commit_version + 1")


def test_a_join_fails_rather_than_serve_older_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = ss.MasterTable.from_arrow(EMPTY, tmp_path / "m", key="id")
    frame = spark.createDataFrame([(1, "a", "insert", 1)], SCHEMA)
    synced = master.sync(frame).master
    sales = spark.createDataFrame([(1, 10), (2, 20)], "id long, n long")

    def joined() -> DataFrame:
        return ss.join(sales, synced, on="id", memory="4MB", max_staleness="10m")

    assert [tuple(row) for row in joined().collect()] == [(1, 10, "a")]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    with pytest.raises(StaleMasterError, match="max_staleness allows 600"):
        joined()
    # That nothing has changed since is fresh enough, and makes no version.
    note_fresh(synced.location, now + 3500)
    assert ss.MasterTable.latest_version(synced.location) == synced.version
    joined()
