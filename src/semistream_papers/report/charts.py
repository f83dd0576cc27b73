"""Charts of figures, in the papers' axes: SVG and PNG, and the data that they are drawn from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from semistream_papers.figures.reproduction import Drawn

__all__ = ["draw", "write_chart"]

# Okabe and Ito's palette: distinct for colour-blind readers and in print.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS: Final = "osD^vPX"
_MOST_MARKED: Final = 30
_MOST_TICKS: Final = 10
_SIZE: Final = (6.0, 3.9)


def write_chart(drawn: Drawn, folder: Path) -> dict[str, Path]:
    """Write the chart as SVG and PNG and its data as JSON; the paths by kind."""
    folder.mkdir(parents=True, exist_ok=True)
    canvas = Canvas(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(canvas)
    draw(drawn, canvas.add_subplot())
    paths = {kind: folder / f"{drawn.figure.name}.{kind}" for kind in ("svg", "png", "json")}
    # Without a date and with fixed ids the same data gives the same file.
    with rc_context({"svg.hashsalt": drawn.figure.name}):
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
        if figure.log_y:
            points = [(x, y) for x, y in points if y > 0]
        if not points:
            continue
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
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    _scale(drawn, axes)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(drawn.lines) > 1:
        axes.legend(fontsize=8, frameon=False)


def _scale(drawn: Drawn, axes: Axes) -> None:
    """Logarithmic axes with a tick at each value that was run; linear ones begin at 0."""
    points = [point for some in drawn.lines.values() for point in some]
    if drawn.figure.log_x:
        axes.set_xscale("log")
        ticks = sorted({x for x, _ in points})
        if len(ticks) <= _MOST_TICKS:
            axes.set_xticks(ticks, [f"{x:,.6g}" for x in ticks], fontsize=8)
            axes.minorticks_off()
    if drawn.figure.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.08 * max(y for _, y in points))
        axes.yaxis.set_major_formatter(lambda at, _: f"{at:,.10g}")
