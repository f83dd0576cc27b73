"""The made-up stream's reader: which tuples have arrived, and which of them are a micro-batch.

Apart from the source because it needs Spark 4.2: an older one does not tell a reader where a batch
starts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from pyspark.sql import datasource as api
from pyspark.sql.streaming import datasource as limits

from semistream.errors import OptionError
from semistream.spark.sales import BURST, SalesMaker, SourceOptions, tuple_ranges

__all__ = ["SalesStreamReader"]

_TUPLE: Final = "tuple"
Offset = dict[str, int]


class SalesStreamReader(SalesMaker, api.DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """Tuples as they arrive: so many a second, or so many a batch."""

    def __init__(self, options: SourceOptions) -> None:
        """No clock runs yet."""
        super().__init__(options)
        self._began: float | None = None
        self._all_available = False

    def initialOffset(self) -> Offset:  # noqa: N802
        """The first tuple."""
        return {_TUPLE: 0}

    def getDefaultReadLimit(self) -> limits.ReadLimit:  # noqa: N802
        """No batch is larger; with `rate`, all that has arrived is one batch."""
        size = self._options.rows_per_batch
        return limits.ReadMaxRows(int(size * BURST)) if size else limits.ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: limits.ReadLimit) -> Offset:  # noqa: N802
        """One past the last tuple of the batch that begins at `start`."""
        first, rows = start[_TUPLE], self._options.rows
        last = self._available(first, isinstance(limit, limits.ReadAllAvailable))
        if isinstance(limit, limits.ReadMaxRows):
            last = min(last, first + limit.max_rows)
        return {_TUPLE: max(first, last if rows is None else min(last, rows))}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """All `rows` are available now."""
        if self._options.rows is None:
            raise OptionError(
                "An endless stream has no end to run up to. Say how many rows with "
                '.option("rows", …), or use another trigger than availableNow.'
            )
        self._all_available = True

    def partitions(self, start: Offset, end: Offset) -> Sequence[api.InputPartition]:
        """Ranges of whole blocks, except at the two ends."""
        return tuple_ranges(start[_TUPLE], end[_TUPLE], self._options.partitions)

    def _available(self, first: int, everything: bool) -> int:
        options = self._options
        if options.rows is not None and everything and (self._all_available or not options.rate):
            return options.rows
        if not options.rate:
            return options.batch_end(first)
        now = time.monotonic()
        if self._began is None:
            # Set the clock as if the stream had always run, so that a restart goes on here.
            self._began = now - float(options.arrival_seconds(first))
        return options.arrived(now - self._began)
