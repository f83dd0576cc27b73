"""The site builds without a warning, and its pictures show what the committed results say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture
def _site_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))


@pytest.mark.usefixtures("_site_parts")
def test_pictures_are_as_drawn() -> None:
    from site_parts.__main__ import PICTURES, drawings

    old = [
        name
        for name, text in drawings().items()
        if (PICTURES / f"{name}.svg").read_text("utf-8") != text
    ]
    assert old == [], "run make pictures"


@pytest.mark.slow
@pytest.mark.usefixtures("_site_parts")
def test_charts_and_the_page_of_performance_follow_from_the_results() -> None:
    from site_parts.__main__ import PERFORMANCE, outdated_charts
    from site_parts.performance_page import performance_page

    assert outdated_charts() == [], "run make pictures"
    assert PERFORMANCE.read_text("utf-8") == performance_page(), "run make pictures"


@pytest.mark.usefixtures("_site_parts")
def test_every_algorithm_has_pictures() -> None:
    import semistream as ss

    names = {path.stem for path in (DOCS / "pictures").glob("*.svg")}
    pages = {path.stem for path in (DOCS / "algorithms").glob("*.md")} - {"index"}
    wanted = {f"{kind}-{name}" for kind in ("algorithm", "chart", "paper") for name in pages}
    assert pages <= set(ss.ALGORITHMS)
    assert wanted <= names


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    folders = (str(DOCS), str(tmp_path / "site"), "-d", str(tmp_path / "doctrees"))
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-b", "html", "-n", "-W", "--keep-going", "-q", *folders],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.glob("**/*.md")]
    assert [page for page in pages if not (tmp_path / "site" / page).is_file()] == []
    # Nothing is loaded from elsewhere.
    text = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert 'src="http' not in text
    assert 'rel="stylesheet" type="text/css" href="http' not in text
