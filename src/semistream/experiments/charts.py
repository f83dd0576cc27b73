"""Charts of figures, in the papers' axes: SVG and PNG, and the data that they are drawn from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from semistream.errors import OptionError
from semistream.experiments.reproduce import Drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "write_chart"]

# Okabe and Ito's palette: told apart by everyone, also in print.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS: Final = "osD^vPX"
_MOST_MARKED: Final = 40
_SIZE: Final = (6.0, 3.9)


def write_chart(drawn: Drawn, folder: Path) -> dict[str, Path]:
    """Write the chart as SVG and PNG and its data as JSON; the paths by kind."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise OptionError(
            "Charts need matplotlib. Install it: pip install 'semistream[reproduce]'."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    canvas = Canvas(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(canvas)
    draw(drawn, canvas.add_subplot())
    paths = {kind: folder / f"{drawn.figure.name}.{kind}" for kind in ("svg", "png", "json")}
    # Without a date and with fixed ids the same data gives the same file.
    canvas.savefig(paths["svg"], metadata={"Date": None, "Creator": None})
    canvas.savefig(paths["png"], dpi=110, metadata={"Software": None})
    figure = drawn.figure
    data = {"figure": figure.name, "x": figure.x, "y": figure.y, "series": drawn.lines}
    paths["json"].write_text(json.dumps(data, ensure_ascii=False) + "\n", "utf-8")
    return paths


def draw(drawn: Drawn, axes: Axes) -> None:
    """Draw the lines of a figure."""
    figure = drawn.figure
    colours: dict[str, int] = {}
    for label, points in drawn.lines.items():
        model = label.endswith(", model")
        number = colours.setdefault(label.removesuffix(", model"), len(colours))
        xs, ys = zip(*points, strict=True)
        marked = len(points) <= _MOST_MARKED and not model
        axes.plot(
            xs,
            ys,
            label=label,
            color=_COLOURS[number % len(_COLOURS)],
            linestyle="--" if model else "-",
            marker=_MARKERS[number % len(_MARKERS)] if marked else "",
            markersize=5,
            linewidth=1.4 if len(points) <= _MOST_MARKED else 0.9,
        )
    _label(figure.x, figure.y, figure.log_x, figure.log_y, axes)
    if len(drawn.lines) > 1:
        axes.legend(fontsize=8, frameon=False)


def _label(x: str, y: str, log_x: bool, log_y: bool, axes: Axes) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda at, _: f"{at:,.10g}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
