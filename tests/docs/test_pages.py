"""The Python of pages under docs/ runs, and prints what the pages say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    "surrogate-keys",
    "deduplication",
    "dimensions",
    "enrichment",
    "conditions",
    "samples",
    "sync",
]


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    found = BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text("utf-8"))
    examples = [
        (code, found[i + 1][1] if found[i + 1 : i + 2] and found[i + 1][0] == "text" else "")
        for i, (language, code) in enumerate(found)
        if language == "python"
    ]
    assert examples
    for code, expected in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{page}.md", "exec"), namespace)
        assert printed.getvalue() == expected
