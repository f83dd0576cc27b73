"""The files of docs/sync.md are what the commands take."""

from __future__ import annotations

import re
from pathlib import Path

from semistream.cli.file_tables import read_file
from semistream.cli.pipeline_file import PipelineFile
from semistream.cli.sync import SyncFile

PAGE = Path(__file__).parents[2] / "docs" / "sync.md"


def test_the_chain_s_files_are_valid(tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    names = ("polled.toml", "goods.toml", "sales.toml")
    polled, goods, sales = (tmp_path / name for name in names)
    for file, text in zip((polled, goods, sales), blocks, strict=True):
        file.write_text(text)
    assert read_file(SyncFile, polled).sync.sequence_by == "updated_at"
    followed, joined = read_file(SyncFile, goods), PipelineFile.read(sales)
    assert joined.master is not None
    assert followed.master.path == joined.master.path
    assert followed.sync.pinned_by == [joined.pipeline.checkpoint]
    assert joined.master.max_staleness == "1h"
    assert followed.connectors == ["kafka"]
