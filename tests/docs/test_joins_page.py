"""The Python on docs/joins.md runs and prints what it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "joins.md").read_text("utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```\n^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_examples_print_what_follows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    found = BLOCK.findall(PAGE)
    assert len(found) == PAGE.count("```python") >= 4
    for code, expected in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "joins.md", "exec"), namespace)
        assert printed.getvalue() == expected
