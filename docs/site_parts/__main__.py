"""Draw all pictures and charts of the documentation, and write its page of performance.

That is `make pictures`; run it after new results were committed.

A picture is the same bytes each time. A chart is drawn anew only if its numbers have changed, so
that another Matplotlib does not touch all files.
"""

from __future__ import annotations

from pathlib import Path

from site_parts.algorithm_pictures import ALGORITHM_PICTURES
from site_parts.charts import chart, numbers_of
from site_parts.figures import CHARTS
from site_parts.performance_page import performance_page
from site_parts.pictures import CONCEPTS

__all__ = ["PERFORMANCE", "PICTURES", "drawings", "outdated_charts"]

_DOCS = Path(__file__).parents[1]
PICTURES = _DOCS / "pictures"
PERFORMANCE = _DOCS / "performance.md"


def main() -> None:
    """Write what has changed."""
    PICTURES.mkdir(exist_ok=True)
    for name, text in drawings().items():
        (PICTURES / f"{name}.svg").write_text(text, "utf-8")
    PERFORMANCE.write_text(performance_page(), "utf-8")
    for name in outdated_charts():
        (PICTURES / f"{name}.svg").write_text(chart(name, *CHARTS[name]()), "utf-8")


def drawings() -> dict[str, str]:
    """The pictures that depend on no results, by name."""
    canvases = [draw() for draw in CONCEPTS] + [shape.picture() for shape in ALGORITHM_PICTURES]
    return {canvas.name: canvas.svg() for canvas in canvases}


def outdated_charts() -> list[str]:
    """The charts whose numbers are not those of the results."""
    return [name for name in CHARTS if not _current(name)]


def _current(name: str) -> bool:
    path = PICTURES / f"{name}.svg"
    wanted = [panel.data() for panel in CHARTS[name]()]
    return path.is_file() and bool(numbers_of(path.read_text("utf-8")) == wanted)


if __name__ == "__main__":
    main()
