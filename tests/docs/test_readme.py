"""Links between the documents lead somewhere, and lists in them are complete."""

import re
from pathlib import Path

import pytest

import semistream as ss
from semistream import errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("**/*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path: Path) -> None:
    missing = [
        target
        for target in LINK.findall(path.read_text("utf-8"))
        if not (path.parent / target).exists()
    ]
    assert missing == []


def test_every_algorithm_has_a_page() -> None:
    index = (DOCS / "algorithms/index.md").read_text("utf-8")
    named = re.findall(r"^\| \[`(\w+)`\]\(", index, re.MULTILINE)
    assert named == list(ss.ALGORITHMS)


def test_every_error_is_on_its_page() -> None:
    page = (DOCS / "errors.md").read_text("utf-8")
    entries = re.findall(r"^### (\w+)\n\S.*\n(?:\S.*\n)*: \S", page, re.MULTILINE)
    assert sorted(entries) == sorted(errors.__all__)


def test_every_decision_is_in_the_index() -> None:
    index = (DOCS / "adr/README.md").read_text("utf-8")
    decisions = [path.name for path in DOCS.glob("adr/[0-9]*.md") if "template" not in path.name]
    assert [name for name in decisions if f"({name})" not in index] == []


def test_the_readme_names_the_command_that_tests() -> None:
    assert "$ make test " in (ROOT / "README.md").read_text("utf-8")
