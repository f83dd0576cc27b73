"""`semistream master build|upsert|delete` and `semistream run` on Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import semistream as ss
from semistream import cli
from semistream.page.status import Watched
from semistream.spark.pipeline.lease import Lease
from semistream.testing import Row, assert_same_rows, oracle_join, rows_of
from tests.spark.versions import needs_made_up_stream

pytestmark = pytest.mark.service


@pytest.fixture
def run(spark: SparkSession) -> Callable[..., Result]:
    def invoke(*arguments: object) -> Result:
        runner = CliRunner(env={"COLUMNS": "80", "FORCE_COLOR": None})
        return runner.invoke(cli.app, [*map(str, arguments)])

    return invoke


GOODS = pa.table({"id": range(300), "name": [f"good {i}" for i in range(300)]})


def stored(path: Path, spark: SparkSession) -> list[Row]:
    """All rows of the newest version, as a join with every key gives them."""
    keys = spark.range(1000)
    joined = ss.join(keys, ss.MasterTable.open(path), on="id", memory="4MB")
    return sorted(rows_of(joined.toArrow()))


def test_build_upsert_and_delete_from_files(
    run: Callable[..., Result], spark: SparkSession, tmp_path: Path
) -> None:
    pq.write_table(GOODS, tmp_path / "goods.parquet")
    path = tmp_path / "goods.master"
    options = ["--shards", 2, "--filter-bits", 10, "--page-bytes", 4096]
    result = run("master", "build", tmp_path / "goods.parquet", path, "--key", "id", *options)
    assert result.exit_code == 0, result.output
    master = ss.MasterTable.open(path)
    assert result.stdout == master.describe() + "\n"
    assert (master.row_count, master.shard_count) == (300, 2)

    csv.write_csv(pa.table({"id": [7, 500], "name": ["seven", "new"]}), tmp_path / "changes.csv")
    result = run("master", "upsert", path, tmp_path / "changes.csv")
    assert result.exit_code == 0, result.output
    assert "version 2 (upsert 2 keys), 301 rows" in result.stdout

    (tmp_path / "gone.json").write_text('{"id": 0}\n{"id": 9999}\n')
    result = run("master", "delete", path, tmp_path / "gone.json")
    assert result.exit_code == 0, result.output
    expected = dict(rows_of(GOODS)) | {7: "seven", 500: "new"}
    del expected[0]
    master = ss.MasterTable.open(path)
    assert (master.version, master.row_count) == (3, 300)
    assert stored(path, spark) == sorted(expected.items())


def test_build_errors_are_one_line(run: Callable[..., Result], tmp_path: Path) -> None:
    pq.write_table(GOODS, tmp_path / "goods.parquet")
    path = tmp_path / "goods.master"
    for source, key, message in (
        ("none.parquet", "id", "PATH_NOT_FOUND"),
        ("goods.parquet", "nr", "nr"),
    ):
        result = run("master", "build", tmp_path / source, path, "--key", key)
        assert result.exit_code == 1
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
    built = ["master", "build", tmp_path / "goods.parquet", path, "--key", "id"]
    assert run(*built).exit_code == 0
    again = run(*built)
    assert again.exit_code == 1
    assert "already holds a master table" in again.stderr
    assert run(*built, "--replace", "--order-by", "id").exit_code == 0
    assert ss.MasterTable.open(path).layout == "given"


PIPELINE = """
[source]
format = "semistream"
select = ["product_id AS id", "quantity"]
[source.options]
keys = 400
rowsPerBatch = 900
rows = 1700
seed = 3
[master]
path = "{folder}/goods.master"
[join]
on = "id"
memory = "1MB"
[sink]
path = "{folder}/out"
[unmatched]
path = "{folder}/unmatched"
[rejected]
path = "{folder}/rejected"
checks = {{ "too many" = "quantity < 9" }}
[pipeline]
checkpoint = "{folder}/checkpoint"
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    ss.MasterTable.from_arrow(GOODS, tmp_path / "goods.master", key="id", page_bytes=4096)
    path = tmp_path / "pipeline.toml"
    path.write_text(PIPELINE.format(folder=tmp_path), "utf-8")
    return path


def rows_in(path: Path, *columns: str) -> list[Row]:
    return sorted(rows_of(ds.dataset(path, partitioning="hive").to_table().select(list(columns))))


@needs_made_up_stream
@pytest.mark.slow
def test_run_once_joins_what_there_is(
    run: Callable[..., Result], spark: SparkSession, pipeline: Path, tmp_path: Path
) -> None:
    result = run("run", pipeline, "--once")
    assert result.exit_code == 0, result.output
    options = {"keys": 400, "rows": 1700, "seed": 3}
    sales = spark.read.format("semistream").options(**options).load().toArrow()
    sales = sales.select(["product_id", "quantity"]).rename_columns(["id", "quantity"])
    kept = sales.filter(pc.less(sales["quantity"], 9))
    expected = oracle_join(kept, GOODS, on={"id": "id"}, how="inner").rows
    assert rows_in(tmp_path / "out", "id", "quantity", "name") == sorted(expected)
    unmatched = kept.filter(pc.greater_equal(kept["id"], 300))
    assert rows_in(tmp_path / "unmatched", "id", "quantity") == sorted(rows_of(unmatched))
    assert len(rows_in(tmp_path / "rejected", "id", "reason")) == len(sales) - len(kept)
    told = f"1,700 tuples up to batch 1, {len(expected):,} joined, {len(unmatched):,} unmatched"
    assert " ".join(result.stdout.split()).startswith(told)
    lines = result.stderr.splitlines()
    assert [line.split()[0] for line in lines] == ["batch", "0", "1"]
    assert max(map(len, lines)) <= 80

    again = run("run", pipeline, "--once")
    assert again.exit_code == 0, again.output
    assert rows_in(tmp_path / "out", "id", "quantity", "name") == sorted(expected)


LOOKUPS = """
[[lookup]]
path = "{folder}/goods.master"
on = "id"
[[lookup]]
path = "{folder}/grades.master"
on = {{ quantity = "most" }}
how = "left"
columns = ["grade"]
prefix = "q_"
[join]
memory = "1MB"
"""
GRADES = pa.table({"most": pa.array(range(6), pa.int32()), "grade": list("abcdef")})


def test_run_with_a_page_leaves_what_a_page_shows(
    run: Callable[..., Result], pipeline: Path, tmp_path: Path
) -> None:
    result = run("run", pipeline, "--once", "--page")
    assert result.exit_code == 0, result.output
    assert re.search(r"The page is at http://127\.0\.0\.1:\d+/", result.stderr)
    status = Watched(tmp_path / "checkpoint").status(wait=True)
    assert (status["state"], status["error"], status["once"]) == ("finished", None, True)
    assert status["batches"] == 2
    totals = status["totals"]
    assert totals["source"] == totals["joined"] + totals["unmatched"] + totals["rejected"] == 1700
    assert status["plan"]["memory"] == status["memory"]["budget"] == 1 << 20
    held = sum(status["memory"]["parts"].values())
    assert 0 < held <= status["memory"]["peak"] <= 1 << 20
    assert status["plan"]["measured"]["rate"] > 0
    (master,) = status["masters"]
    assert (master["version"], master["newest"], master["rows"]) == (1, 1, 300)


@pytest.fixture
def star(pipeline: Path, tmp_path: Path) -> Path:
    """The same pipeline with two masters."""
    ss.MasterTable.from_arrow(GRADES, tmp_path / "grades.master", key="most", page_bytes=4096)
    text = pipeline.read_text("utf-8")
    begin, end = text.index("[master]"), text.index("[sink]")
    pipeline.write_text(text[:begin] + LOOKUPS.format(folder=tmp_path) + text[end:], "utf-8")
    return pipeline


@needs_made_up_stream
@pytest.mark.slow
def test_run_once_with_two_masters(
    run: Callable[..., Result], spark: SparkSession, star: Path, tmp_path: Path
) -> None:
    result = run("run", star, "--once")
    assert result.exit_code == 0, result.output
    options = {"keys": 400, "rows": 1700, "seed": 3}
    sales = spark.read.format("semistream").options(**options).load().toArrow()
    sales = sales.select(["product_id", "quantity"]).rename_columns(["id", "quantity"])
    kept = sales.filter(pc.less(sales["quantity"], 9))
    first = pa.table(
        [list(column) for column in zip(*oracle_join(kept, GOODS, on="id").rows, strict=True)],
        names=["id", "quantity", "name"],
    )
    expected = oracle_join(first, GRADES, on={"quantity": "most"}, how="left").rows
    found = ds.dataset(tmp_path / "out", partitioning="hive").to_table()
    assert_same_rows(found.select(["id", "quantity", "name", "q_grade"]), expected)
    assert len(rows_in(tmp_path / "unmatched", "id", "quantity")) == len(kept) - len(expected)


def told_of(run: Callable[..., Result], file: Path, old: str, new: str, option: str) -> str:
    """The one line that a pipeline file with something changed ends with."""
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")
    result = run("run", file, option)
    assert result.exit_code == 1, result.output
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('on = "id"', 'on = ["id", "quantity"]', "Look-up goods"),
        ('memory = "1MB"', 'memory = "1kB"', "the least"),
        ("grades.master", "none.master", "There is no master table at"),
        ('columns = ["grade"]', 'columns = ["mark"]', "Look-up grades"),
        ('how = "left"\ncolumns = ["grade"]', 'how = "semi"', "grades: how='semi' is not for"),
        ('prefix = "q_"', 'name = "goods"', "the same name: goods"),
    ],
)
def test_what_is_wrong_with_look_ups_is_told_before_spark_starts(
    run: Callable[..., Result],
    star: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    message: str,
) -> None:
    monkeypatch.setattr("semistream.cli.run.spark_session", None)
    assert message in told_of(run, star, old, new, "--once")


STEPS = """
[[step]]
kind = "deduplicate"
master = "{folder}/known.master"
on = "n"
first_by = "quantity"
[[step]]
kind = "surrogate_keys"
keys = "{folder}/keys"
key = {{ product = "int64" }}
surrogate = "product_key"
on = {{ id = "product" }}
memory = "2MB"
[[step]]
kind = "split_new"
master = "{folder}/goods.master"
on = "id"
compare = {{ text = "name" }}
[[step]]
kind = "select"
columns = ["*", "quantity * 10 as tens"]
[[step]]
kind = "where"
predicate = "tens <> 30"
"""


@pytest.fixture
def stepped(pipeline: Path, tmp_path: Path) -> Path:
    """The same pipeline with steps, a condition and a sample."""
    known = pa.table({"n": range(0, 400, 10)})
    ss.MasterTable.from_arrow(known, tmp_path / "known.master", key="n", page_bytes=4096)
    text = pipeline.read_text("utf-8")
    text = text.replace('"quantity"]', '"quantity", "product_id as n", "\'good 7\' as text"]')
    text = text.replace("[sink]", STEPS.format(folder=tmp_path) + "[sink]")
    text = text.replace('on = "id"\nmemory', 'on = "id"\nwhere = "tens > 10"\nsample = 0.5\nmemory')
    pipeline.write_text(text, "utf-8")
    return pipeline


@needs_made_up_stream
@pytest.mark.slow
def test_run_with_steps_and_terms(
    run: Callable[..., Result], spark: SparkSession, stepped: Path, tmp_path: Path
) -> None:
    result = run("run", stepped, "--once")
    assert result.exit_code == 0, result.output
    options = {"keys": 400, "rows": 1700, "seed": 3}
    sales = spark.read.format("semistream").options(**options).load().toArrow()
    # Of each micro-batch of 900, the least quantity of each product that is not known.
    least: dict[tuple[int, int], int] = {}
    for row, sale in enumerate(sales.to_pylist()):
        place = row // 900, sale["product_id"]
        if place[1] % 10:
            least[place] = min(least.get(place, 99), sale["quantity"])
    kept = {place: least for place, least in least.items() if least != 3 and least < 9}
    names = ("id", "quantity", "product_key", "change", "tens")
    found = rows_in(tmp_path / "out", *names, "name") + [
        (*row, None) for row in rows_in(tmp_path / "unmatched", *names)
    ]
    numbers: dict[int, int] = {}
    for id, quantity, number, change, tens, name in found:
        assert quantity in [least for (_, product), least in kept.items() if product == id]
        assert change == ("new" if id >= 300 else "unchanged" if id == 7 else "changed")
        assert tens == quantity * 10
        assert name == (f"good {id}" if id < 300 and tens > 10 else None)
        assert numbers.setdefault(number, id) == id
    assert len(set(numbers.values())) == len(numbers)
    # A sample of one half.
    assert len(kept) * 0.35 < len(found) < len(kept) * 0.65


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("known.master", "none.master", "[step 1]: There is no master table at"),
        ('on = "n"', 'on = "m"', "[step 1]: "),
        ('key = { product = "int64" }', "", "[step 2] needs key and surrogate"),
        ('"int64"', '"integer"', "[step 2]: Key column 'product' has the type 'integer'"),
        ('memory = "2MB"', 'memory = "2 apples"', "[step 2]: memory"),
        ('"tens > 10"', '"tens >"', "[join]: "),
        ("sample = 0.5", "sample = 2", "[join]: sample=2 must be a share"),
        ("sample = 0.5", 'valid = ["n", "since", "until"]', "no column since, until"),
        ("sample = 0.5", 'tolerance = "1h"', "[join]: tolerance='1h'"),
        ("sample = 0.5", 'how = "outer"', "[join]: how='outer' is not known"),
    ],
)
def test_what_is_wrong_with_steps_is_told_before_spark_starts(
    run: Callable[..., Result],
    stepped: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    message: str,
) -> None:
    monkeypatch.setattr("semistream.cli.run.spark_session", None)
    assert run("run", stepped, "--check").exit_code == 0
    assert message in told_of(run, stepped, old, new, "--check")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('first_by = "quantity"', 'first_by = "amount"', "Step 1, deduplicate: first_by='amount'"),
        ('"quantity * 10 as tens"', '"amount * 10 as tens"', "Step 4, select, does not fit"),
        ('"tens <> 30"', '"tens <> "', "Step 5, where, does not fit"),
        ('{ text = "name" }', '{ n = "name" }', "Step 3, split_new: Column 'n' is bigint"),
    ],
)
def test_a_step_that_does_not_fit_is_named(
    run: Callable[..., Result], stepped: Path, old: str, new: str, message: str
) -> None:
    text = stepped.read_text("utf-8")
    assert old in text
    stepped.write_text(text.replace(old, new), "utf-8")
    result = run("run", stepped, "--once")
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "SQLSTATE" not in result.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('on = "id"', 'on = "nr"', "nr"),
        ('memory = "1MB"', 'memory = "1kB"', "the least is"),
        ("goods.master", "none.master", "There is no master table at"),
        ('"semistream"', '"nonesuch"', "nonesuch"),
        ("keys = 400", "kees = 400", "no option 'kees'"),
        ("quantity < 9", "amount < 9", "is no SQL predicate on the source"),
    ],
)
def test_what_a_pipeline_cannot_do_is_one_line(
    run: Callable[..., Result], pipeline: Path, old: str, new: str, message: str
) -> None:
    pipeline.write_text(pipeline.read_text("utf-8").replace(old, new), "utf-8")
    result = run("run", pipeline, "--once")
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_checkpoint_in_use_is_told_before_spark_starts(
    run: Callable[..., Result], pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semistream.cli.run.spark_session", None)
    lease = Lease.take(tmp_path / "checkpoint" / "semistream", "first")
    result = run("run", pipeline, "--once")
    assert result.exit_code == 1, result.output
    assert "in use by the pipeline first" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    lease.release()


@needs_made_up_stream
@pytest.mark.slow
def test_demo_loses_nothing_and_compares(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    options = ["--seconds", 6, "--products", 20_000, "--rate", 5000, "--keep", folder]
    command = [sys.executable, "-m", "semistream", "demo", *map(str, options)]
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Its own count, and one of ours: all sales are there, and the last prices are the third ones.
    told = " ".join(done.stdout.split())
    assert "30,000 sales, made again" in told
    assert "30,000 rows in the warehouse 0 lost or doubled" in told
    stored = ds.dataset(folder / "warehouse", partitioning="hive").to_table()
    assert stored.num_rows == 30_000
    assert len(set(stored["sold_at"].to_pylist())) == 30_000
    master = ss.MasterTable.open(folder / "products.master")
    assert [one.operation for one in master.history()] == ["build", *["upsert 200 keys"] * 2]
    # A worker was killed, as far as one was seen at work, and Spark ran its task again.
    assert re.search(r"kill -9 \d+|no worker was killed", done.stderr)
    for way in ("semistream ", "Spark's own join "):
        assert any(
            line.strip().startswith(way) and "█" in line for line in done.stdout.splitlines()
        )
    # A path to copy is not broken into lines.
    lines = [line for line in done.stdout.splitlines() if str(folder) not in line]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout + done.stderr
    assert sum(" in " in line and "queue" in line for line in done.stderr.splitlines()) <= 10


def test_demo_refuses_a_folder_that_is_not_empty(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "something").touch()
    again = run("demo", "--keep", tmp_path)
    assert again.exit_code == 1
    assert "is there and not empty" in again.stderr


def test_master_sync_follows_a_file_and_goes_on(run: Callable[..., Result], tmp_path: Path) -> None:
    empty = pa.table({"id": pa.array([], pa.int64()), "value": pa.array([], pa.string())})
    ss.MasterTable.from_arrow(empty, tmp_path / "m", key="id")
    file = tmp_path / "sync.toml"
    file.write_text(
        f"""
[source]
format = "json"
path = "{tmp_path}/feed"
schema = "id long, value string, at long, gone boolean"
[master]
path = "{tmp_path}/m"
[sync]
checkpoint = "{tmp_path}/checkpoint"
sequence_by = "at"
apply_as_deletes = "gone"
"""
    )
    (tmp_path / "feed").mkdir()
    first = '{"id": 1, "value": "a", "at": 1}\n{"id": 2, "value": "b", "at": 2}'
    for number, rows in enumerate([first, '{"id": 2, "at": 3, "gone": true}']):
        (tmp_path / "feed" / f"{number}.json").write_text(rows)
        done = run("master", "sync", file, "--once")
        assert done.exit_code == 0, done.output
        assert f"version {number + 2}: " in done.output
    assert ss.MasterTable.open(tmp_path / "m").row_count == 1
