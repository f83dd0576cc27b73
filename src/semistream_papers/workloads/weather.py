"""Weather reports joined on longitude, many to many.

The papers use synoptic cloud reports (NDP-026B, Hahn, Warren and London, 1996): a report is a line
of 56 characters in fixed columns, LON is in hundredths of a degree, 0 to 36,000. `load_reports`
reads such files; `weather_reports` makes reports in the same schema, 128 bytes a row, from
stations whose longitudes repeat as those of real ones do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from semistream.errors import OptionError, StreamSchemaError
from semistream.workload.zipf import Ints, ZipfKeys, scattered

__all__ = ["LONGITUDES", "WEATHER", "StationKeys", "load_reports", "weather_reports"]

LONGITUDES: Final = 36_001
"""The domain of the join attribute: 0 to 36,000."""

# Name, characters in the file, and whether the column is as wide as a key.
_COLUMNS: Final = (
    ("time", 8, True), ("brightness", 1, False), ("lat", 5, True), ("lon", 5, True),
    ("station", 5, True), ("surface", 1, False), ("present_weather", 2, True),
    ("cover", 1, False), ("lower_cover", 2, False), ("base_height", 2, False),
    ("low_type", 2, True), ("middle_type", 2, True), ("high_type", 2, False),
    ("middle_amount", 3, True), ("high_amount", 3, True), ("middle_seen", 1, False),
    ("high_seen", 1, False), ("change", 2, True), ("solar_altitude", 4, True),
    ("lunar_illuminance", 4, True),
)  # fmt: skip
_LINE: Final = sum(width for _, width, _ in _COLUMNS)
WEATHER: Final = pa.schema(
    [(name, pa.int64() if wide else pa.int32()) for name, _, wide in _COLUMNS]
)
"""The columns of a report; 128 bytes a row."""
_CHUNK_ROWS: Final = 1 << 16
_FIRST_TIME: Final = 81_120_100
_STATION_SKEW: Final = 0.5


class StationKeys:
    """Longitudes of reports: places that report often come often. O(n) per call.

    How skewed real reports are depends on the month. `exponent` is that of the Zipf law over the
    longitudes. Frequent ones are scattered, since neighbours need not report equally often.
    `places` is how many longitudes there are.
    """

    def __init__(
        self, seed: int, exponent: float = _STATION_SKEW, places: int = LONGITUDES
    ) -> None:
        self._keys = ZipfKeys(places, exponent, seed)

    def longitudes(self, n: int) -> Ints:
        """The longitudes of the next n reports."""
        # The seed decides which reports come; how often a place reports is the same for all seeds.
        return scattered(self._keys.ranks(n), self._keys.domain, seed=0)


def weather_reports(
    rows: int, seed: int, exponent: float = _STATION_SKEW
) -> Iterator[pa.RecordBatch]:
    """Made-up reports in the schema `WEATHER`; the same seed gives the same reports."""
    if rows < 0:
        raise OptionError(f"rows is {rows}; ask for 0 reports or more.")
    keys = StationKeys(seed, exponent)
    random = np.random.default_rng([seed, 1])
    for start in range(0, rows, _CHUNK_ROWS):
        count = min(_CHUNK_ROWS, rows - start)
        columns: dict[str, Ints] = {
            name: random.integers(0, 10 ** min(width, 4), count) for name, width, _ in _COLUMNS
        }
        columns["lon"] = keys.longitudes(count)
        columns["lat"] = random.integers(-9_000, 9_001, count)
        columns["time"] = _FIRST_TIME + random.integers(0, 31, count) * 100
        arrays = [pa.array(columns[field.name]).cast(field.type) for field in WEATHER]
        yield pa.RecordBatch.from_arrays(arrays, schema=WEATHER)


def load_reports(path: str | Path) -> Iterator[pa.RecordBatch]:
    """The reports of a real file, in the schema `WEATHER`; `StreamSchemaError` for a bad line."""
    with open(path, "rb") as file:
        first = 1
        while lines := [line.rstrip(b"\r\n") for line in islice(file, _CHUNK_ROWS)]:
            yield _parsed(lines, first, str(path))
            first += len(lines)


def _parsed(lines: list[bytes], first: int, path: str) -> pa.RecordBatch:
    bad = next((n for n, line in enumerate(lines) if len(line) < _LINE), None)
    if bad is not None:
        raise StreamSchemaError(
            f"Line {first + bad} of {path} has {len(lines[bad])} characters; a report has {_LINE}. "
            "Give a file of NDP-026B, uncompressed."
        )
    text = np.array([line[:_LINE] for line in lines], dtype=f"S{_LINE}")
    characters = text.view("S1").reshape(len(lines), _LINE)
    arrays, at = [], 0
    for field, (_, width, _) in zip(WEATHER, _COLUMNS, strict=True):
        column = np.ascontiguousarray(characters[:, at : at + width]).view(f"S{width}")[:, 0]
        try:
            numbers = column.astype(np.int64)
        except ValueError as error:
            raise StreamSchemaError(
                f"{path} has no number in column {field.name!r} of a report among lines {first} to "
                f"{first + len(lines) - 1}: {error}. Give a file of NDP-026B, uncompressed."
            ) from error
        arrays.append(pa.array(numbers).cast(field.type))
        at += width
    return pa.RecordBatch.from_arrays(arrays, schema=WEATHER)
