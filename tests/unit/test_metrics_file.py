"""Where the JSON lines of a pipeline go: a file, or a folder as `ss.join` takes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream.spark.pipeline.metrics_log import MetricsLog


def test_a_folder_gets_a_file_of_the_pipelines_name(tmp_path: Path) -> None:
    assert MetricsLog("shop", tmp_path / "new").lines == tmp_path / "new" / "shop.jsonl"
    assert MetricsLog("shop", tmp_path).lines == tmp_path / "shop.jsonl"
    assert MetricsLog("a/b", tmp_path).lines == tmp_path / "a%2Fb.jsonl"
    (tmp_path / "v1.2").mkdir()
    assert MetricsLog("shop", tmp_path / "v1.2").lines == tmp_path / "v1.2" / "shop.jsonl"


@pytest.mark.parametrize("name", ["metrics.jsonl", "deep/er.txt"])
def test_a_file_stays_a_file(tmp_path: Path, name: str) -> None:
    assert MetricsLog("shop", tmp_path / name).lines == tmp_path / name


def test_a_file_that_is_there_stays_one_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("{}")
    assert MetricsLog("shop", str(tmp_path / "lines")).lines == tmp_path / "lines"
    assert MetricsLog("shop").lines is None
