"""What the tests of load shedding share: a master, and a look at what goes to disk and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.parts.shedding import Shedder, ShedFile

ROWS = 2000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> ss.MasterTable:
    names = [f"product {i:06}" for i in range(ROWS)]
    table = pa.table({"id": np.arange(ROWS), "name": names})
    path = tmp_path_factory.mktemp("shedding") / "products.master"
    return ss.MasterTable.from_arrow(table, path, key="id", page_bytes=4096)


class Watched:
    """Notes what goes into shed files and what comes out, and checks every adjustment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shed: list[int] = []
        self.back: list[int] = []
        self.deferred: list[int] = []
        append, take, adjust = ShedFile.append, ShedFile.take, Shedder.adjust

        def noted_append(file: ShedFile, since: float, batch: pa.RecordBatch) -> None:
            append(file, since, batch)
            self.shed += batch.column("sale").to_pylist()

        def noted_take(file: ShedFile, count: int) -> Any:
            taken = take(file, count)
            for piece in taken:
                self.back += piece.batch.column("sale").to_pylist()
            return taken

        def checked_adjust(shedder: Shedder) -> None:
            adjust(shedder)
            shedder.check()
            shedder._stream.check()
            self.deferred.append(len(shedder._file))

        monkeypatch.setattr(ShedFile, "append", noted_append)
        monkeypatch.setattr(ShedFile, "take", noted_take)
        monkeypatch.setattr(Shedder, "adjust", checked_adjust)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)
