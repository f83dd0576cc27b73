"""The outputs of notebooks, as they are committed: whole, and of nobody's machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
OF_A_MACHINE = re.compile(
    r"(?<![\w.])/(?:tmp|home|root|work|Users|var|opt|usr|private)/[\w.]|127\.0\.0\.1|://[^/\s]*:[^/\s]*@"
)
"""Folders, addresses and passwords."""


def _code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _text(output: dict[str, Any]) -> str:
    return json.dumps([output.get("text"), output.get("data")], ensure_ascii=False)


def test_there_are_some() -> None:
    assert len(NOTEBOOKS) >= 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_was_run_from_top_to_bottom_without_an_error(path: Path) -> None:
    cells = _code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "error" not in kinds
    assert "execute_result" in kinds, "it shows something"
    assert any("assert " in "".join(cell["source"]) for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_name_no_machine(path: Path) -> None:
    texts = [_text(output) for cell in _code_cells(path) for output in cell["outputs"]]
    found = [hit[0] for text in texts for hit in OF_A_MACHINE.finditer(text)]
    assert found == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_file_is_tidy(path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert all(set(cell["metadata"]) <= {"tags"} for cell in notebook["cells"])
    outputs = [output for cell in _code_cells(path) for output in cell["outputs"]]
    assert all(output.get("name") != "stderr" for output in outputs)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("in /tmp/tmpab12/x", True),
        ("/root/.cache", True),
        ("postgresql://shop:secret@db/shop", True),
        ("a/tmp/b and 10/home", False),
        ("https://example.com/home/x", False),
    ],
)
def test_what_counts_as_of_a_machine(text: str, found: bool) -> None:
    assert (OF_A_MACHINE.search(text) is not None) is found
