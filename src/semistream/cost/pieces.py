"""Pieces of output: how many a plan makes, which costs more than their rows if they are small."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from semistream.column_widths import column_width
from semistream.cost.popularity import Floats
from semistream.parts.join_shape import JoinShape
from semistream.parts.result_columns import piece_rows
from semistream.plan import JoinPlan
from semistream.relation import MasterTable

BATCH_ROWS = 10_000
"""Rows of a batch of the stream, as Spark makes them."""
_UNEVEN = np.linspace(0.8, 1.2, 9)
"""The rows of one time beside their average."""


def chunk_rows(plan: JoinPlan) -> float:
    """Rows of a chunk of the stream on average; the last one of a batch ends with it."""
    return BATCH_ROWS / -(-BATCH_ROWS // plan.stream_chunk_rows)


class Pieces(NamedTuple):
    """How many pieces of output a plan makes."""

    shape: JoinShape
    master: MasterTable
    sample: pa.RecordBatch

    def compiled(self, plan: JoinPlan, rows: float, ends: float) -> float:
        """For so many rows that compiled code writes, which begins anew `ends` times."""
        stored = self.master.stored_schema
        varying = sum(column_width(stored.field(name).type) < 0 for name in self.shape.payload)
        most = plan.fragment_bytes // (self._widest_tuple + self.master.widest_row)
        # Then a piece is half full.
        return rows / piece_rows(max(1, most), varying) + ends / 2

    def gathered(self, plan: JoinPlan, rows: Floats | float, times: Floats | float) -> float:
        """For so many rows that Python gathers `times` times; arrays if they differ."""
        average = float(self.master.pages.length.sum()) / max(self.master.row_count, 1)
        most = min(plan.pairs, plan.fragment_bytes / (self._widest_tuple + average))
        each = np.divide(rows, np.maximum(times, 1e-15))
        # There is one if there are rows, by chance, and more if they do not all fit it.
        pieces = np.ceil(np.multiply.outer(_UNEVEN, each) / most).mean(axis=0) - np.exp(-each)
        return float(np.sum(times * pieces))

    @property
    def columns(self) -> int:
        """Columns of a piece."""
        return len(self.shape.output_schema)

    @property
    def _widest_tuple(self) -> int:
        plain = self.shape.plain(self.sample)
        return self.shape.tuple_bytes(plain) if plain.num_rows else 64
