"""A large relation for a measured run is built by Spark, with the same rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from semistream.relation import Frame, MasterTable
from semistream_papers.runs.inputs import stored_master
from semistream_papers.runs.setting import Setting

SETTING = Setting("hybridjoin", rows=20_000, memory=10**6, relation_exponent=0.5, page_bytes=8192)


def rows_of(master: MasterTable) -> list[tuple[int, bytes]]:
    with master.reader() as reader:
        frame = Frame(reader.frame_bytes(1))
        pages = [
            pa.concat_batches(reader.read(page, 1, frame)).to_pylist()
            for page in range(master.page_count)
        ]
    return [(row["key"], bytes(row["payload"])) for page in pages for row in page]


@pytest.mark.service
@pytest.mark.usefixtures("spark")
def test_spark_builds_the_same_rows(tmp_path: Path) -> None:
    by_spark = stored_master(SETTING, tmp_path / "spark", most_collected=1_000)
    collected = stored_master(SETTING, tmp_path / "arrow")
    assert by_spark.row_count == collected.row_count == 20_000
    assert sorted(rows_of(by_spark)) == sorted(rows_of(collected))
    again = stored_master(replace(SETTING, seed=1), tmp_path / "spark", most_collected=1_000)
    assert again.manifest.build_id == by_spark.manifest.build_id
