"""The inputs of a run: R, synthetic or stored, and the stream S."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.relation import MasterTable
from semistream.relation.frame import ALIGNMENT
from semistream.relation.page_file import rows_per_page
from semistream_papers.runs.setting import Setting
from semistream_papers.workloads.integral_zipf import zipf_rows
from semistream_papers.workloads.keyed_rows import (
    KeyedTuples,
    KeyRule,
    master_rows,
    numbered_rows,
    repeated,
    spread,
)
from semistream_papers.workloads.locality import LocalKeys
from semistream_papers.workloads.synthetic_master import SyntheticMaster, synthetic_schema
from semistream_papers.workloads.weather import LONGITUDES, StationKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["master_of", "rows_per_page_of", "stored_master", "tuples_of"]

_LOOK_UP_PAGE = 1024
_INTERVALS = 25
_COLUMNS = ["key", "payload"]
_MOST = 20_000_000
"""Rows that are collected in memory to build a master table; a larger one is built by Spark."""


def page_bytes_of(setting: Setting) -> int:
    """Bytes of a page of R: few where each tuple has a look-up, since the papers' bring a row."""
    return setting.page_bytes if setting.needs.waiting else _LOOK_UP_PAGE


def rows_per_page_of(setting: Setting) -> int:
    """Rows of a full page of R."""
    return rows_per_page(synthetic_schema(setting.row_bytes), page_bytes_of(setting))


def master_of(setting: Setting, page_bytes: int = 0) -> SyntheticMaster:
    """R, by arithmetic."""
    page_bytes = page_bytes or page_bytes_of(setting)
    return SyntheticMaster(setting.run_rows, setting.row_bytes, page_bytes, _key_rule(setting))


def stored_master(setting: Setting, folder: Path, most_collected: int = _MOST) -> MasterTable:
    """R on this machine's disk, built once for all settings that share it; a large one by Spark."""
    page_bytes, rule = max(page_bytes_of(setting), ALIGNMENT), _key_rule(setting)
    parts = (setting.run_rows, setting.row_bytes, page_bytes, setting.rows_per_key)
    skew = setting.relation_exponent
    name = "-".join(map(str, parts)) + ("" if skew is None else f"-{skew:g}") + f"-{setting.stream}"
    path = folder / f"{name}.master"
    if path.exists():
        return MasterTable.open(path)
    if setting.run_rows > most_collected:
        frame = _spark_rows(setting.run_rows, rule, setting.row_bytes)
        return MasterTable.build(frame, path, key="key", page_bytes=page_bytes)
    rows = master_rows(setting.run_rows, rule, setting.row_bytes)
    return MasterTable.from_arrow(rows, path, key="key", page_bytes=page_bytes)


def _spark_rows(rows: int, rule: KeyRule, row_bytes: int) -> DataFrame:
    """The same rows as a frame, made by Spark's tasks."""
    from semistream.spark.session import local_session

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = numbered_rows(batch["id"].to_numpy(), rule, row_bytes)
            # Spark knows no binary of fixed size.
            yield pa.record_batch([found["key"], found["payload"].cast(pa.binary())], _COLUMNS)

    return local_session().range(rows).mapInArrow(made, "key LONG, payload BINARY")


def tuples_of(setting: Setting) -> KeyedTuples:
    """S from its beginning."""
    if setting.stream == "weather":
        stations = StationKeys(setting.seed, places=_longitudes(setting))
        return KeyedTuples(stations.longitudes, setting.tuple_bytes)
    if setting.stream == "local":
        # The paper's stream is half as long as R.
        length = max(_INTERVALS, setting.run_rows // 2)
        keys = LocalKeys(setting.domain, length, setting.seed, _INTERVALS, setting.exponent)
        return KeyedTuples(keys.ranks, setting.tuple_bytes)
    return KeyedTuples.zipf(
        setting.domain, setting.exponent, setting.seed, setting.scatter, setting.tuple_bytes
    )


def _longitudes(setting: Setting) -> int:
    """How many longitudes there are: as many as give each the rows that it has in the paper."""
    return max(1, round(LONGITUDES * setting.factor))


def _key_rule(setting: Setting) -> KeyRule:
    if setting.stream == "weather":
        return spread(setting.run_rows, _longitudes(setting))
    if setting.relation_exponent is not None:
        return zipf_rows(setting.run_rows, setting.run_rows, setting.relation_exponent)
    return repeated(setting.rows_per_key)
