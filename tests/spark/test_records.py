"""`ss.parsed`: records in a column as columns; what is not one record is kept whole."""

from __future__ import annotations

import base64

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import semistream as ss
from semistream.errors import OptionError
from semistream.spark.sql_columns import column_names

pytestmark = pytest.mark.service

FINE = ['{"id": 1, "n": 2}', ' {"id": 3}\n', '{"id": 4, "more": {"a": [1, "]"]}}', "{}"]
BROKEN = [
    "{broken",
    '{"id": "no number"}',
    "",
    "7",
    # More than one: the second would be lost.
    '{"id": 5}\n{"id": 6}',
    '{"id": 5},{"id": 6}',
    '{"id": 5} }}}',
    '{"id": 5}, ',
]


def test_each_text_is_one_record_or_kept_whole(spark: SparkSession) -> None:
    rows = [(number, text.encode()) for number, text in enumerate([*FINE, *BROKEN])]
    frame = spark.createDataFrame([*rows, (99, None)], "number int, value binary")
    found = ss.parsed(frame, "id long, n int", keep=("number",)).orderBy("number").collect()
    values = [(row.id, row.n) for row in found[: len(FINE)]]
    assert values == [(1, 2), (3, None), (4, None), (None, None)]
    corrupt = [row._corrupt_record for row in found]
    assert corrupt == [None] * len(FINE) + BROKEN + [None]


def test_bytes_that_are_no_text_are_no_record(spark: SparkSession) -> None:
    broken = b'{"id": 1, "name": "Z\xfcrich"}'
    frame = spark.createDataFrame([(broken,)], "value binary")
    (row,) = ss.parsed(frame, "id long, name string").collect()
    kind, _, kept = row._corrupt_record.partition(":")
    assert (kind, base64.b64decode(kept)) == ("base64", broken)


SCHEMAS = [
    "id long",
    "`my id` long, `b``c` INT NOT NULL COMMENT 'of, it', d decimal(9,2)",
    "a: int, b array<struct<c: string, d map<string, array<int>>>>, e struct<>",
    "struct<a: int, b: string>",
    "t timestamp_ntz, v varchar(3), i interval day to second, b binary, f double, o variant",
    "s string collate UNICODE_CI, n numeric, r real",
]
NO_SCHEMAS = [
    "",
    "long",
    "id",
    "id lnog",
    "id long,",
    "id long, , n int",
    "id array<>",
    "id array<int",
    "m map<int>",
    "a struct<b: itn>",
    "(id long)",
]


@pytest.mark.parametrize("schema", [*SCHEMAS, *NO_SCHEMAS])
def test_what_is_seen_of_a_schema_without_spark_is_what_spark_says(
    spark: SparkSession, schema: str
) -> None:
    try:
        found = StructType.fromDDL(schema)
        names = found.names if isinstance(found, StructType) and found.names else None
    except PySparkException:
        names = None
    assert (names is None) == (schema in NO_SCHEMAS)
    if names is not None:
        assert column_names(schema) == names
        return
    with pytest.raises(OptionError, match="not a list of columns"):
        column_names(schema)
