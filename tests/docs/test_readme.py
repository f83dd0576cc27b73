"""The README's Python runs and prints what it says; links between the documents lead somewhere."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import semistream as ss

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def blocks():
    return BLOCK.findall((ROOT / "README.md").read_text("utf-8"))


def test_python_blocks_print_what_follows_them(tmp_path, monkeypatch):
    # The blocks write a master table, and go on from one another.
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    found = blocks()
    examples = [
        (code, found[i + 1][1]) for i, (language, code) in enumerate(found) if language == "python"
    ]
    assert len(examples) >= 2
    for code, expected in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), namespace)
        assert printed.getvalue() == expected


def test_the_algorithms_it_names_exist():
    named = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert len(named) >= 6
    assert [name for name in named if name not in ss.ALGORITHMS] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path):
    missing = [
        target
        for target in LINK.findall(path.read_text("utf-8"))
        if not (path.parent / target).exists()
    ]
    assert missing == []


def test_every_decision_is_in_the_index():
    index = (ROOT / "docs/adr/README.md").read_text("utf-8")
    decisions = [
        path.name for path in ROOT.glob("docs/adr/[0-9]*.md") if "template" not in path.name
    ]
    assert [name for name in decisions if f"({name})" not in index] == []
