"""`semistream run --check`: what Spark would refuse is told in one sentence, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from typer.testing import CliRunner

import semistream as ss
from semistream import cli

FILE = """
[source]
format = "kafka"
value = "json"
schema = "id long, sold struct<at: timestamp, n: decimal(9, 2)>"
keep = ["topic"]
[source.options]
"kafka.bootstrap.servers" = "h:9092"
subscribe = "sales"
[master]
path = "{folder}/goods.master"
[join]
on = "id"
memory = "4MB"
[sink]
format = "postgresql"
url = "postgresql://${{DB_USER}}:${{DB_PASSWORD}}@h/shop"
table = "sales"
[pipeline]
checkpoint = "{folder}/checkpoint"
[spark]
connectors = ["kafka"]
"""
Check = Callable[[str, str], str]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """What `--check` says of the file with something changed; without an old text, added."""
    goods = pa.table({"id": range(100), "name": [str(i) for i in range(100)]})
    ss.MasterTable.from_arrow(goods, tmp_path / "goods.master", key="id", page_bytes=4096)
    monkeypatch.setenv("DB_USER", "me")
    monkeypatch.setenv("DB_PASSWORD", "geheim")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    # As it is where Kafka's connector and Delta's are, and Iceberg's is not.
    monkeypatch.setattr(pyspark, "__version__", "4.2.1")
    monkeypatch.setattr("semistream.cli.run.spark_session", None)

    def told(old: str, new: str) -> str:
        text = FILE.format(folder=tmp_path)
        assert old in text
        file = tmp_path / "pipeline.toml"
        file.write_text(text.replace(old, new) if old else text + new, "utf-8")
        result = CliRunner().invoke(cli.app, ["run", str(file), "--check"])
        lines = (result.stdout + result.stderr).splitlines()
        assert len(lines) == 1, lines
        assert (result.exit_code == 0) == lines[0].startswith("Nothing is wrong")
        return lines[0]

    return told


def test_a_file_with_nothing_wrong(check: Check) -> None:
    assert check("", "").startswith("Nothing is wrong")
    assert check("", '"spark.jars.packages" = "a:b:1"\n').startswith("Nothing is wrong")
    avro = '{"type": "record", "name": "sale", "fields": [{"name": "id", "type": "long"}]}'
    schema = f"value = \"avro\"\nschema = '{avro}'\n[source.options]"
    old = FILE[FILE.index("value =") : FILE.index("[source.options]") + 16].replace("{{", "{")
    assert check(old, schema).startswith("Nothing is wrong")
    files = 'format = "json"\nschema = "id long, _corrupt_record string"\n[source.options]'
    assert check('format = "kafka"\n' + old, files).startswith("Nothing is wrong")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["kafka"]', '["kafka", "iceberg"]', "no iceberg connector for Spark 4.2.1, which is"),
        ('["kafka"]', '["kafak"]', "no connector 'kafak'. Is 'kafka' meant? Known are: kafka, av"),
        ('["kafka"]', "[]", "[source] needs the kafka connector, which Spark does not have by"),
        ('["kafka"]', '["delta"]', 'add connectors = ["delta", "kafka"] to [spark].'),
        (
            'format = "postgresql"\nurl = "postgresql://${DB_USER}:${DB_PASSWORD}@h/shop"',
            'format = "delta"',
            "[sink] needs the delta connector, which Spark does not have by itself: add",
        ),
        ('subscribe = "sales"', "", "[source]: A Kafka source must have one of subscribe, subs"),
        (
            '"kafka.bootstrap.servers" = "h:9092"',
            "",
            'must name its servers. Add "kafka.bootstrap.servers" = "host:9092" to its options.',
        ),
        ('"h:9092"', '"${NO_SERVERS}"', "[source]: A setting names ${NO_SERVERS}, but the env"),
        ('value = "json"', 'value = "protobuf"', "'protobuf' are not known. Use one of: json, "),
        ('value = "json"', 'value = "avro"', "schema is not Avro's JSON (Expecting value"),
        ("id long", "id long, ID int", "has the column 'id' twice. Leave one out."),
        ("id long", "id lnog", "the column 'id' has the type 'lnog'; is 'long' meant?"),
        ("id long", "id", "the column 'id' has no type"),
        ("n: decimal", "n: decimla", "the column 'n' has the type 'decimla'; is 'decimal' meant"),
        ('["topic"]', '["topc"]', "no column topc; it has key, value, topic, partition, offs"),
        ("table = ", 'patience = "soon"\ntable = ', "[sink]: patience='soon' is not a duration"),
        ("${DB_PASSWORD}", "geheim", "h/shop is given with a password. Keep it in the environm"),
        ("[spark]", '[spark]\n"spark.executor.cores" = 4', "is 4; give a string or a list of"),
        ("[spark]", 'trigger = "often"\n[spark]', "[pipeline]: trigger='often' is not a dura"),
        ("[spark]", "[deferred]\npath = 'd'\n[spark]", "but without batch_target none is ever"),
        ("[spark]", "[unmatched]\nretry = true\nfactor = 0.5\n[spark]", "factor=0.5 must be a"),
        ("[join]", 'max_staleness = "old"\n[join]', "[master]: max_staleness='old' is not a"),
    ],
)
def test_what_is_wrong_is_told_without_spark(
    check: Check, old: str, new: str, message: str
) -> None:
    said = check(old, new)
    assert message in said
    assert "geheim" not in said
