"""Every pipeline file of the page on connectors is whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from semistream.cli.pipeline_file import PipelineFile
from semistream.cli.pipeline_parts import sink_of_table
from semistream.spark.connectors import CONNECTORS

PAGE = Path(__file__).parents[2] / "docs" / "connectors.md"
BLOCKS = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
KINDS = ["ParquetSink", "TableSink", "IcebergSink", "DatabaseSink", "KafkaSink"]


@pytest.mark.parametrize(("text", "kind"), list(zip(BLOCKS, KINDS, strict=True)), ids=KINDS)
def test_a_pipeline_file_of_the_page_is_whole(text: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / "sales.toml"
    file.write_text(text)
    asked = PipelineFile.read(file)
    assert type(sink_of_table(asked.sink)).__name__ == kind
    assert set(asked.connectors) <= set(CONNECTORS)
