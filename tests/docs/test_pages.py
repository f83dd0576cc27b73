"""The examples of README and pages run, and print what the pages say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semistream.cli.file_tables import read_file
from semistream.cli.pipeline_file import PipelineFile
from semistream.cli.sync import SyncFile
from tests.docs.examples import ROOT, examples, own_process, pages_with_examples, run


def _marks(page: Path) -> list[pytest.MarkDecorator]:
    if any(one.language == "console" or "spark" in one.text for one in examples(page)):
        return [pytest.mark.slow, pytest.mark.service]
    return []


PAGES = [
    pytest.param(page, marks=_marks(page), id=str(page.relative_to(ROOT)))
    for page in pages_with_examples()
]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_print_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own_process(page):
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-m", "tests.docs.examples", str(page)],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    else:
        monkeypatch.chdir(tmp_path)
        run(page, tmp_path)


def test_what_is_found_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- python\na = 1\n-->\n\n```python\nprint(a)\n```\n\n```text\n1\n```\n\n"
        "<!-- not run: no such thing -->\n```python\nnothing()\n```\n\n"
        "```python\nb = 2\n```\n\nSee:\n\n```text\nother\n```\n\n```console\n$ echo hi\nhi\n```\n"
    )
    found = [(one.language, one.text, one.expected) for one in examples(page)]
    assert found == [
        ("python", "a = 1\n", None),
        ("python", "print(a)\n", "1\n"),
        ("python", "b = 2\n", ""),
        ("console", "$ echo hi\nhi\n", ""),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nprint(1)\n```\n",
        "```console\n$ echo hi\nho\n```\n",
        "```console\n$ false\n```\n",
    ],
)
def test_a_wrong_example_is_noticed(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError):
        run(page, tmp_path)


def _files() -> list[object]:
    pages = sorted(ROOT.glob("docs/**/*.md"))
    found = [(page, one) for page in pages for one in examples(page) if one.language == "toml"]
    return [
        pytest.param(one.text, id=f"{page.name}, line {one.line}")
        for page, one in found
        if one.text.startswith("# ")
    ]


@pytest.mark.parametrize("text", _files())
def test_files_are_what_the_commands_take(text: str, tmp_path: Path) -> None:
    file = tmp_path / "given.toml"
    file.write_text(text, "utf-8")
    if "[sync]" in text:
        assert read_file(SyncFile, file).sync.checkpoint
    else:
        assert PipelineFile.read(file).pipeline.checkpoint
