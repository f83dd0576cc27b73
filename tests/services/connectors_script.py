"""Uses every connector that fits the installed Spark; prints which worked, as JSON.

python connectors_script.py FOLDER [CONNECTOR …]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyspark
from pyspark.sql import SparkSession

import semistream as ss
from semistream.spark.connectors import CONNECTORS
from semistream.spark.sync.polling import with_driver

LAKE = "spark.sql.catalog.lake"


def kafka(spark: SparkSession, folder: Path) -> bool:
    """The topics that the broker has: none of this name."""
    server = os.environ["SEMISTREAM_TEST_KAFKA"]
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", server)
    return reader.option("subscribePattern", "no-topic-of-this-name").load().count() == 0


def avro(spark: SparkSession, folder: Path) -> bool:
    """To Avro and back."""
    from pyspark.sql.avro.functions import from_avro, to_avro

    schema = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
    packed = spark.range(3).selectExpr("struct(id) as r").select(to_avro("r", schema).alias("r"))
    rows = packed.select(from_avro("r", schema).alias("r")).select("r.id").collect()
    return [row.id for row in rows] == [0, 1, 2]


def delta(spark: SparkSession, folder: Path) -> bool:
    """Write a table and merge into it."""
    spark.range(3).write.format("delta").save(str(folder / "delta"))
    spark.sql(
        f"merge into delta.`{folder}/delta` as t using (select 2 as id union select 3) as s "
        "on t.id = s.id when not matched then insert *"
    )
    return spark.read.format("delta").load(str(folder / "delta")).count() == 4


def iceberg(spark: SparkSession, folder: Path) -> bool:
    """Write a table and delete from it."""
    spark.range(3).writeTo("lake.shop.goods").using("iceberg").create()
    spark.sql("delete from lake.shop.goods where id = 1")
    return spark.table("lake.shop.goods").count() == 2


def jdbc(kind: str) -> Callable[[SparkSession, Path], bool]:
    """Ask the database for a number."""

    def use(spark: SparkSession, folder: Path) -> bool:
        variable = {"postgresql": "POSTGRES"}.get(kind, kind.upper())
        uri = urlsplit(os.environ[f"SEMISTREAM_TEST_{variable}"])
        url = f"jdbc:{kind}://{uri.hostname}:{uri.port}{uri.path}"
        reader = spark.read.format("jdbc").options(**with_driver({"url": url}))
        reader = reader.option("user", uri.username or "")
        reader = reader.option("password", unquote(uri.password or ""))
        (row,) = reader.option("query", "select 7 as n").load().collect()
        return int(row.n) == 7

    return use


USES: dict[str, Callable[[SparkSession, Path], bool]] = {
    "kafka": kafka,
    "avro": avro,
    "delta": delta,
    "iceberg": iceberg,
    "postgresql": jdbc("postgresql"),
    "mariadb": jdbc("mariadb"),
}


def main(folder: Path, names: list[str]) -> None:
    """Start a session with all of them, and use one after the other."""
    fit = [name for name, one in CONNECTORS.items() if one.fits(pyspark.__version__)]
    settings = {
        LAKE: "org.apache.iceberg.spark.SparkCatalog",
        f"{LAKE}.type": "hadoop",
        f"{LAKE}.warehouse": str(folder / "lake"),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    names = names or fit
    spark = ss.local_session(1, "1g", log=folder / "log", connectors=names, **settings)
    worked = [name for name in names if USES[name](spark, folder)]
    spark.stop()
    print(json.dumps({"spark": pyspark.__version__, "fit": fit, "worked": worked}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
