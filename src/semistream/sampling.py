"""Samples: a share of the stream's tuples, chosen by what they hold.

A tuple is in the sample if a hash of its columns and the seed is below the share. So every tuple
has the same chance, the choice needs no memory, and it does not depend on the order of tuples, on
batches or on partitions: when Spark runs a task again, or divides the stream in another way, the
same tuples are chosen. Tuples that are equal in all columns share a choice, and `estimate` takes
that into account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.errors import KeyTypeError, OptionError
from semistream.keys import KeyCodec

__all__ = ["Sample", "chosen", "sampled"]

_NULL: Final = np.uint64(0x9E3779B97F4A7C15)
_FLOATS: Final = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


@dataclass(frozen=True)
class Sample:
    """A share of the stream's tuples; another `seed` chooses other tuples.

    `by` names the columns that decide: tuples that are equal in them are chosen together. By
    default these are all of the stream's columns, but for lists and structs.
    """

    share: float
    seed: int = 0
    by: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """`OptionError` if it is no sample."""
        seed, by = self.seed, self.by
        share: object = self.share
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not 0 < self.share <= 1:
            raise OptionError(f"sample={share!r} must be a share above 0 and at most 1.")
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise OptionError(f"seed={seed!r} must be a whole number from 0 on, below 2**63.")
        if by is not None:
            if isinstance(by, str) or not by or not all(isinstance(name, str) for name in by):
                raise OptionError(f"by={by!r} must be a list of the stream's columns.")
            object.__setattr__(self, "by", tuple(by))

    @classmethod
    def of(cls, sample: float | Sample) -> Sample:
        """A sample, given as one or as a share."""
        return sample if isinstance(sample, Sample) else cls(sample)

    def of_columns(self, schema: pa.Schema) -> Sample:
        """The same sample with the columns of a stream that decide; an error if they cannot."""
        names = self.by
        if names is None:
            names = [field.name for field in schema if not pa.types.is_nested(field.type)]
        missing = [name for name in names if name not in schema.names]
        if missing or not names:
            raise OptionError(
                f"A sample cannot be taken by {missing or list(names)}: the stream has the columns "
                f"{schema.names}. Name some that are no lists or structs, as in "
                'ss.Sample(0.1, by=["id"]).'
            )
        for name in names:
            _codec(schema.field(name))
        return replace(self, by=tuple(names))


def chosen(batch: pa.RecordBatch, sample: Sample) -> NDArray[np.bool_]:
    """Which tuples are in the sample. O(bytes of the columns)."""
    # Mixed twice, so that a seed is no value's like: samples of two seeds are independent.
    seed = _mixed(_mixed(np.array([sample.seed], np.uint64)))[0]
    hashes = np.full(batch.num_rows, seed)
    for name in sample.by or ():
        hashes = _mixed(hashes + _hashes(batch.column(name)))
    # 2**53 steps: the share as a fraction of them is exact.
    return np.asarray((hashes >> np.uint64(11)).astype(np.float64) < sample.share * 2.0**53)


def sampled(
    batches: Iterator[pa.RecordBatch], sample: Sample, note: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """The stream's batches with only the chosen tuples; `note` is told how many are left out.

    A batch without any is skipped, since an empty one would mean a pause.
    """
    resolved: Sample | None = None
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch) or not batch.num_rows:
            yield batch
            continue
        if resolved is None:
            resolved = sample.of_columns(batch.schema)
        wanted = chosen(batch, resolved)
        count = int(np.count_nonzero(wanted))
        note(batch.num_rows - count)
        if count:
            yield batch.filter(to_arrow(wanted)) if count < batch.num_rows else batch


def _hashes(column: pa.Array) -> NDArray[np.uint64]:
    """A number for each value; it is the same for equal values, whatever their batch."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return np.full(len(column), _NULL)
    if column.type in _FLOATS:
        column = column.view(_FLOATS[column.type])
    codes, valid = _codec(pa.field("", column.type)).codes([_plain(column)])
    hashes = _mixed(codes.view(np.uint64))
    return hashes if valid is None else np.where(valid, hashes, _NULL)


def _codec(field: pa.Field) -> KeyCodec:
    kind = field.type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    kind = _FLOATS.get(kind, kind)
    try:
        return KeyCodec(
            [pa.field(field.name, pa.int64() if pa.types.is_null(kind) else _kind(kind))]
        )
    except KeyTypeError as error:
        raise OptionError(
            f"A sample cannot be taken by column {field.name!r} of type {field.type}. Name others "
            'that decide, as in ss.Sample(0.1, by=["id"]).'
        ) from error


def _kind(kind: pa.DataType) -> pa.DataType:
    """Views of strings are hashed as strings."""
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def _plain(column: pa.Array) -> pa.Array:
    kind = _kind(column.type)
    return column if kind == column.type else column.cast(kind)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the outcome depends on every bit that goes in."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))
