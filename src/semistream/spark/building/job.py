"""Building a master table from a Spark DataFrame, however large.

    df ─► code, shard ─► range-partitioned by (shard, order) ─► sorted ─► a page file per task
                                                                            │ index entries
    manifest ◄── filter ◄── locator (layout "given") ◄────────── driver ◄───┘

Rows go from the executors straight to storage; the driver sees an index entry per page. Only
DataFrame operations are used, so a build runs under Spark Connect too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from semistream.crash_points import reached
from semistream.errors import InternalError, KeyColumnError
from semistream.history import check_history
from semistream.keys import KeyCodec
from semistream.relation.build import CODE_COLUMN, Recipe, check_columns, next_version
from semistream.relation.build_progress import Report
from semistream.relation.columns import SparkFrame
from semistream.relation.locator import LOCATOR_PAGE_BYTES, LOCATOR_SCHEMA
from semistream.relation.page_file import page_file_name
from semistream.relation.page_index import PageIndex
from semistream.relation.storage import PACKED, Packing, Storage
from semistream.relation.versions.draft import Draft
from semistream.relation.versions.manifest import Manifest, StoredFile, encode_schema, store
from semistream.spark.building.checks import (
    batch_frame,
    check_names,
    check_no_overlap,
    check_order,
    user_schema,
)
from semistream.spark.building.filter import write_filter
from semistream.spark.building.progress import reporter, watched
from semistream.spark.building.tasks import (
    FILE_ROW,
    LOCATED_ROW,
    SHARD,
    WEIGHT,
    CodeReader,
    CodeTask,
    LocateTask,
    SampleTask,
    WriteTask,
)
from semistream.spark.columns import check_collations, column

__all__ = ["build"]

_WEIGHED: Final = f"{WEIGHT}_{CODE_COLUMN}"
"""The code that a weight is for."""


def build(
    df: SparkFrame,
    storage: Storage,
    *,
    key: str | Sequence[str],
    page_bytes: int | None,
    layout: str | None,
    order_by: str | None,
    sample: SparkFrame | None,
    shards: int,
    filter_bits: int,
    valid: tuple[str, str] | None,
    compression: str | None,
    replace: bool,
    progress: bool | Report | None,
    metadata: Mapping[bytes, bytes] | None = None,
    after: int | None = None,
    operation: str = "build",
) -> int:
    """Write the next version and commit it; its number. See `MasterTable.build`.

    `metadata` is that of the stored schema. With `after`, the next version must be the one after
    this: `MasterExistsError` if another writer was first.
    """
    frame = batch_frame(df, "df")
    weighed = order_by is not None or sample is not None
    chosen = layout or ("given" if weighed else "key")
    recipe = Recipe.of(key, page_bytes, chosen, filter_bits, shards, valid, compression)
    check_order(frame, chosen, order_by, sample)
    job = _Job.of(frame, storage, recipe, metadata, operation)
    if compression == PACKED:
        Packing.check(job.stored_schema)
    report = reporter(progress)
    version = next_version(storage, replace) if after is None else after + 1
    if job.recipe.valid is not None:
        check_no_overlap(frame, recipe.key, job.recipe.valid)
    with Draft(storage, version) as draft:
        job.run(draft, _weights(job, order_by, sample), report)
    return version


@dataclass(frozen=True)
class _Pages:
    """The page files of a build, in the order of their pages."""

    index: PageIndex
    files: tuple[StoredFile, ...]
    starts: tuple[int, ...]
    rows: list[dict[str, Any]]
    """What the tasks reported, a `FILE_ROW` for each file."""
    rows_without_key: int

    def total(self, column: str) -> int:
        """The sum of a column of `rows`."""
        return sum(row[column] for row in self.rows)


@dataclass(frozen=True)
class _Job:
    """A build of one master table from one frame."""

    df: DataFrame
    storage: Storage
    recipe: Recipe
    user_schema: pa.Schema
    """The rows as they are stored, without the column of codes."""
    exact: bool
    operation: str

    @classmethod
    def of(
        cls,
        df: DataFrame,
        storage: Storage,
        recipe: Recipe,
        metadata: Mapping[bytes, bytes] | None,
        operation: str,
    ) -> _Job:
        """The job, after all checks of the columns."""
        check_columns(df.columns, recipe.key)
        check_names(df.columns)
        check_collations(df.schema, recipe.key, "Key column")
        schema = user_schema(df)
        if metadata is not None:
            schema = schema.with_metadata(metadata)
        recipe = replace(recipe, valid=check_history(schema, recipe.key, recipe.valid))
        codec = KeyCodec([schema.field(name) for name in recipe.key])
        return cls(df, storage, recipe, schema, codec.exact, operation)

    @property
    def stored_schema(self) -> pa.Schema:
        """The columns of a page."""
        if self.exact:
            return self.user_schema
        return self.user_schema.append(pa.field(CODE_COLUMN, pa.int64(), nullable=False))

    def run(self, draft: Draft, weights: DataFrame | None, report: Report | None) -> None:
        """Write all files and commit the version."""
        recipe = self.recipe
        with watched("pages", draft, report):
            pages = self._pages(draft, self._ordered(weights))
        files = {"index": store(self.storage, draft.file("index.arrow"), pages.index.to_bytes())}
        fields: dict[str, Any] = {}
        if recipe.layout == "given":
            with watched("locator", draft, report):
                fields, files["locator_index"] = self._locator(draft, pages)
        if recipe.filter_bits:
            with watched("filter", draft, report):
                files["filter"] = write_filter(
                    self._frame_of(pages),
                    self._code_reader(),
                    draft,
                    pages.total("codes"),
                    recipe.filter_bits,
                )
        manifest = self._manifest(draft.version, pages, files, fields)
        draft.sweep({file.name for file in manifest.data_files})
        reached("job.swept")
        draft.commit(manifest)
        with watched("done", draft, report):
            pass

    def coded(self) -> DataFrame:
        """The rows with code and shard."""
        task = CodeTask(_serialised(self.user_schema), self.recipe.key, self.recipe.shards)
        # The row that says how many rows have no key has nulls in these.
        fields = [StructField(f.name, f.dataType, True) for f in self.df.schema.fields]
        added = [StructField(CODE_COLUMN, LongType()), StructField(SHARD, IntegerType())]
        return self.df.mapInArrow(task, StructType([*fields, *added]))

    def _ordered(self, weights: DataFrame | None) -> DataFrame:
        """The rows in the order of the pages, in as many tasks as Spark chooses."""
        rows, order = self.coded(), [F.col(SHARD).asc()]
        if weights is not None:
            rows = rows.join(weights, F.col(CODE_COLUMN) == F.col(_WEIGHED), "left")
            order.append(F.col(WEIGHT).desc_nulls_last())
        return _sorted(rows, [*order, F.col(CODE_COLUMN).asc()])

    def _pages(self, draft: Draft, ordered: DataFrame) -> _Pages:
        """Write the pages."""
        task = WriteTask(
            self.storage.location,
            draft.stem,
            page_file_name(self.recipe.compression),
            _serialised(self.stored_schema),
            self.recipe.page_bytes,
            self.recipe.compression,
        )
        return _collected(ordered.mapInArrow(task, FILE_ROW), self.recipe.shards)

    def _locator(self, draft: Draft, pages: _Pages) -> tuple[dict[str, Any], StoredFile]:
        """Write the locator; the manifest's fields for it, and its index."""
        recipe, location = self.recipe, self.storage.location
        locate = LocateTask(self._code_reader(), recipe.shards)
        write = WriteTask(
            location, draft.stem, "locator.arrow", _serialised(LOCATOR_SCHEMA), LOCATOR_PAGE_BYTES
        )
        rows = self._frame_of(pages).mapInArrow(locate, LOCATED_ROW)
        ordered = _sorted(rows, [F.col(SHARD).asc(), F.col(CODE_COLUMN).asc()])
        found = _collected(ordered.mapInArrow(write, FILE_ROW), recipe.shards)
        index = store(self.storage, draft.file("locator-index.arrow"), found.index.to_bytes())
        return {"locator_files": found.files, "locator_starts": found.starts}, index

    def _code_reader(self) -> CodeReader:
        recipe, stored = self.recipe, _serialised(self.stored_schema)
        return CodeReader(self.storage.location, stored, recipe.key, recipe.compression)

    def _frame_of(self, pages: _Pages) -> DataFrame:
        """The page files as a frame for a `CodeReader`, with a task for each file."""
        bases = np.cumsum([0, *(sum(row["pages"]) for row in pages.rows)]).tolist()
        rows = [
            (row["name"], base, bytes(row["entries"]))
            for row, base in zip(pages.rows, bases, strict=False)
        ]
        frame = self.df.sparkSession.createDataFrame(rows, "name string, base int, entries binary")
        return frame.repartition(max(len(rows), 1), "name")

    def _manifest(
        self, version: int, pages: _Pages, files: dict[str, StoredFile], fields: dict[str, Any]
    ) -> Manifest:
        recipe = self.recipe
        return Manifest(
            version=version,
            key=recipe.key,
            layout=recipe.layout,
            row_count=pages.index.row_count,
            page_count=len(pages.index),
            rows_without_key=pages.rows_without_key,
            page_bytes=recipe.page_bytes,
            widest_row=max((row["widest_row"] for row in pages.rows), default=0),
            schema=encode_schema(self.stored_schema),
            code_column=None if self.exact else CODE_COLUMN,
            files=files,
            page_files=pages.files,
            shard_starts=pages.starts,
            valid=recipe.valid,
            compression=recipe.compression,
            operation=self.operation,
            **fields,
        )


def _serialised(schema: pa.Schema) -> bytes:
    data: bytes = schema.serialize().to_pybytes()
    return data


def _sorted(rows: DataFrame, order: list[Column]) -> DataFrame:
    """The rows sorted over all tasks.

    Since no number of partitions is given, Spark may merge small neighbours; the order stays.
    """
    return rows.repartitionByRange(*order).sortWithinPartitions(*order)


def _collected(written: DataFrame, shards: int) -> _Pages:
    """Run the job; the files of the tasks that succeeded, in the order of their rows."""
    told = sorted(written.toArrow().to_pylist(), key=lambda row: row["partition"])
    rows = [row for row in told if row["name"]]
    counts = np.zeros(shards, np.int64)
    parts = []
    for number, row in enumerate(rows):
        np.add.at(counts, row["shards"], row["pages"])
        parts.append(PageIndex.from_bytes(row["entries"]).renumbered(np.array([number], np.int32)))
    owners = [shard for row in rows for shard in row["shards"]]
    if owners != sorted(owners):
        raise InternalError("Spark gave the shards out of order. Please report this.")
    return _Pages(
        PageIndex.joined(parts),
        tuple(StoredFile(row["name"], row["bytes"]) for row in rows),
        (0, *np.cumsum(counts).tolist()),
        rows,
        sum(row["rows_without_key"] for row in told),
    )


def _weights(job: _Job, order_by: str | None, sample: object | None) -> DataFrame | None:
    """A weight for each code, the heaviest to come first; None for key order."""
    if order_by is not None:
        rows, weight = job.coded(), F.max(column(order_by))
    elif sample is not None:
        key = job.recipe.key
        task = SampleTask(_serialised(job.user_schema), key)
        given = batch_frame(sample, "sample")
        missing = [name for name in key if name not in given.columns]
        if missing:
            raise KeyColumnError(
                f"sample has no column {missing}, which is of the key; its columns are "
                f"{given.columns}. Rename its key columns as the master's."
            )
        tuples = given.select(*(column(name) for name in key))
        rows, weight = tuples.mapInArrow(task, f"{CODE_COLUMN} bigint"), F.count(F.lit(1))
    else:
        return None
    return rows.groupBy(F.col(CODE_COLUMN).alias(_WEIGHED)).agg(weight.alias(WEIGHT))
