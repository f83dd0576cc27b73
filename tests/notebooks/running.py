"""Runs a notebook in a kernel of its own, and leaves out of it what differs from run to run."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

__all__ = ["FOLDER", "run", "tidy"]

FOLDER: Final = Path(__file__).parents[2] / "examples" / "notebooks"
_PATIENCE: Final = 300
"""Seconds that a cell may take: a guard against one that hangs."""


def run(path: Path) -> Any:
    """The notebook with new outputs; a cell that fails raises `CellExecutionError`."""
    notebook: Any = nbformat.read(path, as_version=4)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=_PATIENCE,
            kernel_name="python3",
            coalesce_streams=True,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        ).execute(env=os.environ | {"PATH": tools})
    return notebook


def tidy(notebook: Any) -> Any:
    """Without what a reader does not need: versions of the kernel, and what goes to stderr."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    for cell in notebook.cells:
        cell.metadata = {name: value for name, value in cell.metadata.items() if name == "tags"}
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
            for output in cell.outputs:
                _shorten(output)
    return notebook


def _shorten(output: Any) -> None:
    """Of a display that is a picture or a table its plain text goes: nobody sees it."""
    if "metadata" in output:
        output.metadata = {}
    rich = {name: text for name, text in output.get("data", {}).items() if name != "text/plain"}
    if rich:
        output.data = rich
