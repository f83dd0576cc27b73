"""The half of a hand-written join that all peers share: distinct keys in, a left join out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Keys = npt.NDArray[np.int64]
LookUp = Callable[[Keys], tuple[Keys, pa.RecordBatch]]
"""Ascending keys in; those that R has, ascending too, and the other columns of their rows."""


def left_join(
    batches: Iterator[pa.RecordBatch], key: str, look_up: LookUp
) -> Iterator[pa.RecordBatch]:
    """Join the batches of one task at once, so that each distinct key is looked up once.

    Keys are unique in R and never null in the stream.
    """
    gathered = list(batches)
    if not gathered:
        return
    stream = pa.Table.from_batches(gathered).combine_chunks().to_batches()
    for batch in stream:
        distinct, places = np.unique(batch.column(key).to_numpy(), return_inverse=True)
        found, rows = look_up(distinct)
        at = np.searchsorted(found, distinct)
        if len(found) == len(distinct):
            master = rows.take(pa.array(places))
        else:
            missing = ~np.isin(distinct, found, assume_unique=True)
            master = rows.take(pa.array(at[places], mask=missing[places]))
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, *master.columns], names=batch.schema.names + master.schema.names
        )
