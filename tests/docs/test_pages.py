"""The Python of pages under docs/ runs and prints what follows it."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["conditions", "samples"])
def test_python_blocks_print_what_follows_them(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    found = BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text("utf-8"))
    examples = [
        (code, found[i + 1][1]) for i, (language, code) in enumerate(found) if language == "python"
    ]
    assert examples
    for code, expected in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{page}.md", "exec"), namespace)
        assert printed.getvalue() == expected
