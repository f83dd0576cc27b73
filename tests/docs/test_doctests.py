"""Every example in a docstring of the packages runs and gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_names() -> list[str]:
    paths = (path.relative_to(SOURCE) for path in sorted(SOURCE.glob("semistream*/**/*.py")))
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]


@pytest.mark.parametrize("name", module_names())
def test_examples(name, tmp_path, monkeypatch):
    # An example may write files; it does so where nothing is lost.
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert outcome.failed == 0, f"{outcome.failed} of {outcome.attempted} examples in {name}"
