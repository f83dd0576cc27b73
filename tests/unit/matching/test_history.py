"""History: times of any kind and unit, overlaps at build and upsert, and what the manifest says."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream as ss
from semistream.errors import HistoryError, MasterFormatError, OptionError
from semistream.testing import rows_of

VALID = ("begins", "ends")
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def ticks(values: Sequence[int], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind)


@pytest.mark.parametrize("event", UNITS)
@pytest.mark.parametrize("bound", UNITS)
def test_bounds_are_exact_in_any_units(event: str, bound: str, tmp_path: Path) -> None:
    """One tick before, at and after each bound, in the finer of the two units."""
    size = UNITS[bound]
    begins, ends = [3 * size, -5 * size], [7 * size, -2 * size]
    rows = pa.table(
        {
            "id": pa.array([1, 1]),
            "begins": ticks(begins, pa.timestamp(bound)),
            "ends": ticks(ends, pa.timestamp(bound)),
            "row": pa.array([0, 1]),
        }
    )
    master = ss.MasterTable.from_arrow(rows, tmp_path / "m", key="id", valid=VALID)
    times = [t * UNITS[event] + d for t in (3, 7, -5, -2) for d in (-1, 0, 1)]
    stream = pa.record_batch(
        {"id": pa.array([1] * len(times)), "at": ticks(times, pa.timestamp(event))}
    )

    def at(tick: int) -> int | None:
        # In units of the finer side, whichever it is.
        scale = max(UNITS[event], UNITS[bound])
        now = tick * (scale // UNITS[event])
        factor = scale // UNITS[bound]
        spans = zip(begins, ends, strict=True)
        found = [i for i, (low, high) in enumerate(spans) if low * factor <= now < high * factor]
        return found[0] if found else None

    terms: dict[str, Any] = {"how": "left", "columns": ["row"], "preserve_order": True}
    engine = ss.engine(master, on="id", memory="1MB", valid=("at", *VALID), **terms)
    assert [row[2] for row in rows_of(list(engine.run([stream])))] == [at(t) for t in times]
    # As of a time, with a tolerance to the tick of the finer side.
    second = dt.timedelta(seconds=1)
    engine = ss.engine(
        master, on="id", memory="1MB", as_of=("at", "begins"), tolerance=second, **terms
    )
    found = [row[2] for row in rows_of(list(engine.run([stream])))]
    scale = max(UNITS[event], UNITS[bound])
    for tick, row in zip(times, found, strict=True):
        now = tick * (scale // UNITS[event])
        known = [
            (low * (scale // UNITS[bound]), i)
            for i, low in enumerate(begins)
            if low * (scale // UNITS[bound]) <= now
        ]
        latest = max(known, default=None)
        wanted = latest is not None and now - latest[0] <= scale
        assert row == (latest[1] if wanted and latest is not None else None), tick


def test_times_that_no_finer_unit_holds(tmp_path: Path) -> None:
    """Year 1 and year 9999 are beyond nanoseconds, and still mean for ever."""
    rows = pa.table(
        {
            "id": [1],
            "begins": pa.array([dt.datetime(1, 1, 1)], pa.timestamp("us")),
            "ends": pa.array([dt.datetime(9999, 12, 31)], pa.timestamp("us")),
        }
    )
    master = ss.MasterTable.from_arrow(rows, tmp_path / "m", key="id", valid=VALID)
    extremes = [-(2**63) + 1, 0, 2**63 - 1]
    stream = pa.record_batch({"id": [1, 1, 1], "at": ticks([*extremes], pa.timestamp("ns"))})
    kinds: list[dict[str, Any]] = [
        {"valid": ("at", *VALID)},
        {"as_of": ("at", "begins"), "tolerance": "999999d"},
    ]
    for terms in kinds:
        engine = ss.engine(master, on="id", memory="1MB", how="semi", **terms)
        assert sum(batch.num_rows for batch in engine.run([stream])) == 3


OVERLAPS: dict[str, tuple[list[int | None], list[int | None], bool]] = {
    "touching": ([0, 5], [5, 9], False),
    "by one": ([0, 4], [5, 9], True),
    "inside": ([0, 2], [9, 3], True),
    "twice the same": ([0, 0], [5, 5], True),
    "open, then another": ([0, 5], [None, 9], True),
    "closed, then open": ([0, 5], [5, None], False),
    "both open": ([0, 5], [None, None], True),
    "empty inside another": ([0, 3], [5, 3], False),
    "ends before it begins": ([0, 4], [5, 1], False),
    "never begins": ([0, None], [5, None], False),
}


@pytest.mark.parametrize("name", OVERLAPS)
@pytest.mark.parametrize("key", ["number", "text", "both"])
def test_overlaps_are_found_at_build_and_upsert(name: str, key: str, tmp_path: Path) -> None:
    begins, ends, overlaps = OVERLAPS[name]
    keys: dict[str, list[Any]] = {"number": [7, 7], "text": ["k", "k"]}
    names = ["number", "text"] if key == "both" else [key]
    others: dict[str, list[Any]] = {"number": [7, 8], "text": ["k", "l"]}

    def table(key_values: dict[str, list[Any]], order: int) -> pa.Table:
        times = {"begins": pa.array(begins, pa.int64()), "ends": pa.array(ends, pa.int64())}
        return pa.table({**{n: key_values[n] for n in names}, **times})[::order]

    built = ss.MasterTable.from_arrow(table(others, 1), tmp_path / "m", key=names, valid=VALID)
    for order in (1, -1):
        rows = table(keys, order)
        if overlaps:
            with pytest.raises(HistoryError, match=f"for the key {names[0]}="):
                ss.MasterTable.from_arrow(rows, tmp_path / "n", key=names, valid=VALID)
            with pytest.raises(HistoryError, match=f"for the key {names[0]}="):
                built.upsert(rows)
        else:
            built = built.upsert(rows)
    assert built.compact().valid == VALID


def test_the_manifest_says_it_only_if_it_is_so(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "begins": [0], "ends": [5]})
    for name, valid in (("without", None), ("with", VALID)):
        master = ss.MasterTable.from_arrow(rows, tmp_path / name, key="id", valid=valid)
        text = (tmp_path / name / "versions" / "00000001.json").read_text()
        assert json.loads(text).get("valid") == (None if valid is None else list(valid))
        assert ss.MasterTable.open(tmp_path / name).valid == master.valid == valid


def test_a_manifest_with_other_columns_is_refused(tmp_path: Path) -> None:
    from semistream.relation.versions import manifest as manifests

    rows = pa.table({"id": [1], "begins": [0], "ends": [5]})
    ss.MasterTable.from_arrow(rows, tmp_path / "m", key="id", valid=VALID)
    path = tmp_path / "m" / "versions" / "00000001.json"
    for bad in (["begins"], ["begins", "never"], "begins", None, [1, 2]):
        content = json.loads(path.read_text())
        del content["checksum"]
        content["valid"] = bad
        content["checksum"] = manifests._checksum(content)
        other = tmp_path / "m" / "versions" / "00000002.json"
        other.write_text(json.dumps(content | {"version": 1}))
        path.write_text(json.dumps(content))
        with pytest.raises(MasterFormatError):
            ss.MasterTable.open(tmp_path / "m", 1)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such column of the stream": ({"valid": ("when", *VALID)}, "'when'"),
    "no such column of the master": ({"as_of": ("at", "never")}, "'never'"),
    "two columns": ({"valid": ("at", "begins")}, "3 columns"),
    "a text": ({"as_of": "at"}, "2 columns"),
    "a date against a timestamp": ({"as_of": ("day", "begins")}, "Cast"),
    "a zone against none": ({"as_of": ("zoned", "begins")}, "Cast"),
    "a floating-point number": ({"as_of": ("x", "begins")}, "Cast"),
    "both": ({"valid": ("at", *VALID), "as_of": ("at", "begins")}, "Give one"),
    "a tolerance of nothing": ({"tolerance": "1h"}, "as_of"),
    "a tolerance below zero": ({"as_of": ("at", "begins"), "tolerance": -1}, "not negative"),
    "a tolerance in words": ({"as_of": ("at", "begins"), "tolerance": "soon"}, "duration"),
    "a number for a time": ({"as_of": ("at", "begins"), "tolerance": 5}, "a duration"),
    "columns of a semi join": ({"how": "semi", "columns": ["begins"]}, "Leave columns out"),
    "an unknown kind": ({"how": "outer"}, '"semi", "anti"'),
    "an order that is neither": ({"preserve_order": 1}, "True or False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_terms_that_do_not_fit_are_refused(name: str, tmp_path: Path) -> None:
    terms, said = REFUSED[name]
    times = {n: pa.array([None], pa.timestamp("us")) for n in VALID}
    master = ss.MasterTable.from_arrow(pa.table({"id": [1], **times}), tmp_path / "m", key="id")
    stream = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("ms")),
            ("day", pa.date32()),
            ("zoned", pa.timestamp("us", "UTC")),
            ("x", pa.float64()),
        ]
    )
    with pytest.raises(OptionError, match=said):
        ss.engine(master, on="id", memory="1MB", **terms).shape(stream)


@pytest.mark.parametrize("valid", ["begins", ("begins",), ("begins", "id"), ("begins", "text"), 5])
def test_valid_columns_that_cannot_be_are_refused(valid: Any, tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "begins": [0], "ends": [5], "text": ["a"]})
    with pytest.raises(OptionError, match="valid="):
        ss.MasterTable.from_arrow(rows, tmp_path / "m", key="id", valid=valid)
