"""`semistream master build|upsert|delete` and `semistream run` on Spark."""

from __future__ import annotations

import re
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
from semistream.testing import Row, assert_same_rows, oracle_join, rows_of

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


@pytest.fixture
def star(pipeline: Path, tmp_path: Path) -> Path:
    """The same pipeline with two masters."""
    ss.MasterTable.from_arrow(GRADES, tmp_path / "grades.master", key="most", page_bytes=4096)
    text = pipeline.read_text("utf-8")
    begin, end = text.index("[master]"), text.index("[sink]")
    pipeline.write_text(text[:begin] + LOOKUPS.format(folder=tmp_path) + text[end:], "utf-8")
    return pipeline


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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('on = "id"', 'on = ["id", "quantity"]', "Look-up goods"),
        ('memory = "1MB"', 'memory = "1kB"', "the least"),
        ("grades.master", "none.master", "There is no master table at"),
        ('columns = ["grade"]', 'columns = ["mark"]', "Look-up grades"),
        ('how = "left"', 'how = "semi"', "Look-up grades: how='semi' is not for"),
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
    text = star.read_text("utf-8")
    assert old in text
    star.write_text(text.replace(old, new), "utf-8")
    result = run("run", star, "--once")
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


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


@pytest.mark.slow
def test_demo_enriches_every_sale_and_compares(
    run: Callable[..., Result], spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    result = run("demo", "--seconds", 2, "--products", 2000, "--rate", 2000, "--keep", folder)
    assert result.exit_code == 0, result.output
    options: dict[str, int | str] = {
        "keys": 2000,
        "rows": 4_000,
        "seed": 1,
        "rate": 2000,
        "bursty": "true",
    }
    sales = spark.read.format("semistream").options(**options).load().toArrow()
    products = pq.read_table(folder / "products.parquet")
    columns = [*sales.column_names, "name", "brand"]
    expected = oracle_join(sales, products, on="product_id", how="left", columns=columns[3:])
    assert rows_in(folder / "warehouse", *columns) == sorted(expected.rows)
    assert "R: 2,000 products" in result.stdout
    told = " ".join(result.stdout.split())
    assert re.search(r"4,000 tuples up to batch \d+, 4,000 joined\.", told)
    assert result.stderr.splitlines()[1].split()[:2] == ["batch", "tuples"]
    for way in ("semistream ", "Spark stream-static "):
        assert sum(line.strip().startswith(way) for line in result.stdout.splitlines()) >= 1
    # A path to copy is not broken into lines.
    lines = [line for line in result.output.splitlines() if str(folder) not in line]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.output
    again = run("demo", "--keep", folder)
    assert again.exit_code == 1
    assert "is there and not empty" in again.stderr
