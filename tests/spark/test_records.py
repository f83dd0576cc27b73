"""`ss.parsed`: records in a column as columns; what is not one record is kept whole."""

from __future__ import annotations

import base64

import pytest
from pyspark.sql import SparkSession

import semistream as ss

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
