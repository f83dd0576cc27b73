"""A folder of shed tuples that was left by a run: the next run joins them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import semistream as ss
from semistream.testing import ManualClock, assert_same_rows, oracle_join, rows_of
from tests.compatibility.data import EARLY, FILES, goods, shed_sales


def test_what_was_shed_is_joined(tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "shed", tmp_path / "shed")
    master = ss.MasterTable.from_arrow(goods(EARLY), tmp_path / "r", key="id", page_bytes=4096)
    engine = ss.engine(
        master, on="id", how="left", memory="1MB", algorithm="hybridjoin", clock=ManualClock()
    )
    found = rows_of(engine.run_timed([], shedding=ss.Shedding("keep", folder)))
    shed = json.loads((FILES / "shed.json").read_text())
    assert len(shed) > 100
    expected = oracle_join(shed_sales().take(shed), goods(EARLY), on="id", how="left").rows
    assert_same_rows(found, expected)
