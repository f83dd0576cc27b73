"""The membership filter of a master table, made by Spark in slices.

    page files ─► codes by slice ─► (gathered by Spark) ─► slices of a megabyte ─► the file

The driver holds one slice at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash
from pyspark.sql import DataFrame

from semistream.keys import Codes
from semistream.relation.membership_filter import SLICE_BLOCKS, FilterShape
from semistream.relation.versions.draft import Draft
from semistream.relation.versions.manifest import StoredFile
from semistream.spark.building.tasks import Batches, CodeReader, equal_runs

__all__ = ["write_filter"]

_CODE_ROW: Final = "slice bigint, code bigint"
_SLICE_ROW: Final = "slice bigint, words binary"


@dataclass(frozen=True)
class _SortTask:
    """The codes of page files, each with the slice of the filter that it belongs to."""

    reader: CodeReader
    shape: FilterShape

    def __call__(self, batches: Batches) -> Batches:
        """Rows of `_CODE_ROW`."""
        for _, pages in self.reader.files(batches):
            for _, codes in pages:
                slices = self.shape.slices_of(codes)
                yield pa.record_batch([pa.array(slices), pa.array(codes)], ["slice", "code"])


@dataclass(frozen=True)
class _SliceTask:
    """Slices of the filter, from codes that come slice by slice."""

    shape: FilterShape

    def __call__(self, batches: Batches) -> Batches:
        """Rows of `_SLICE_ROW`."""
        current, words = -1, np.empty(0, np.uint64)
        for number, codes in _by_slice(batches):
            if number != current:
                if current >= 0:
                    yield _slice_row(current, words.tobytes())
                current, words = number, self.shape.slice_words(number)
            self.shape.add(words, number, codes)
        if current >= 0:
            yield _slice_row(current, words.tobytes())


def _by_slice(batches: Batches) -> Iterator[tuple[int, Codes]]:
    for batch in batches:
        slices, codes = (column.to_numpy() for column in batch.columns)
        for low, high in equal_runs(slices):
            yield int(slices[low]), codes[low:high]


def _slice_row(number: int, words: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array([number]), pa.array([words])], ["slice", "words"])


def write_filter(
    files: DataFrame, reader: CodeReader, draft: Draft, keys: int, bits: int
) -> StoredFile:
    """Write the filter over the codes of page files, which `files` names for the reader."""
    shape = FilterShape.of(keys, bits)
    codes = files.mapInArrow(_SortTask(reader, shape), _CODE_ROW)
    slices = (
        codes.repartition("slice")
        .sortWithinPartitions("slice")
        .mapInArrow(_SliceTask(shape), _SLICE_ROW)
        .orderBy("slice")
    )
    name = draft.file("filter")
    digest, written = xxhash.xxh3_64(), 0
    with draft.storage.open_sink(f"data/{name}") as sink:
        for piece in _content(shape, slices):
            sink.write(piece)
            digest.update(piece)
            written += len(piece)
    draft.storage.settle([f"data/{name}"])
    return StoredFile(name, written, digest.hexdigest())


def _content(shape: FilterShape, slices: DataFrame) -> Iterator[bytes]:
    """The file's content, from its beginning; a slice without codes is all zeros."""
    yield shape.header
    following = 0
    for row in slices.toLocalIterator():
        for number in range(following, row["slice"]):
            yield shape.slice_words(number).tobytes()
        yield bytes(row["words"])
        following = row["slice"] + 1
    for number in range(following, -(-shape.blocks // SLICE_BLOCKS)):
        yield shape.slice_words(number).tobytes()
