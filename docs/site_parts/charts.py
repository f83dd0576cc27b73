"""Charts drawn from committed results, with Matplotlib, in the colours of the palette.

Matplotlib is given the colours of the light palette, and each is then replaced by its name: so a
chart follows the page's light or dark as the pictures do. The numbers stand in the file too. A test
compares them with the results: another Matplotlib may draw another file of the same numbers.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from site_parts.palette import LIGHT, SERIES, STYLE

__all__ = ["Bars", "Curves", "Panel", "chart", "numbers_of"]

_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": LIGHT["pic-ink"],
    "axes.edgecolor": LIGHT["pic-line"],
    "axes.labelcolor": LIGHT["pic-soft"],
    "xtick.color": LIGHT["pic-soft"],
    "ytick.color": LIGHT["pic-soft"],
    "grid.color": LIGHT["pic-line"],
}
_MARKERS: Final = "osD^v"


@dataclass(frozen=True)
class Bars:
    """Rates, one bar below the other; those in `ours` are coloured."""

    title: str
    values: Mapping[str, float]
    ours: tuple[str, ...] = ("semistream",)
    unit: str = "thousand tuples per second"
    label: Callable[[float], str] = lambda value: f"{value:,.0f}"
    log: bool = False

    def data(self) -> Any:
        """The numbers, rounded as far as one can see."""
        return {name: _seen(value) for name, value in self.values.items()}

    @property
    def height(self) -> float:
        """Inches: a bar needs as much as its name."""
        return 1.05 + 0.29 * len(self.values)

    def draw(self, axes: Axes) -> None:
        """The bars, from the top."""
        names = list(self.values)
        colours = [LIGHT["pic-1" if name in self.ours else "pic-line"] for name in names]
        bars = axes.barh(names, list(self.values.values()), color=colours, height=0.66)
        axes.bar_label(bars, [self.label(self.values[name]) for name in names], padding=4)
        axes.invert_yaxis()
        if self.log:
            axes.set_xscale("log")
            axes.set_xlim(1, 4 * max(self.values.values()))
            axes.xaxis.set_major_formatter(lambda at, _: f"{at:,.10g}")
        else:
            axes.set_xlim(0, 1.15 * max(self.values.values()))
        axes.set_xlabel(self.unit)
        axes.tick_params(axis="y", length=0, labelcolor=LIGHT["pic-ink"])
        axes.spines[["top", "right", "left"]].set_visible(False)


@dataclass(frozen=True)
class Curves:
    """Lines; those that are not in `of` stand in the background, if any are."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    of: tuple[str, ...] = ()
    log_x: bool = False
    log_y: bool = False

    def data(self) -> Any:
        """The numbers, rounded as far as one can see."""
        return {
            name: [[_seen(x), _seen(y)] for x, y in points] for name, points in self.lines.items()
        }

    @property
    def height(self) -> float:
        """Inches."""
        return 3.3

    def draw(self, axes: Axes) -> None:
        """The lines, each with its name at its end or in the legend."""
        number = 0
        for name, points in self.lines.items():
            behind = bool(self.of) and name not in self.of
            colour = "pic-line" if behind else SERIES[number % len(SERIES)]
            marker = "" if behind else _MARKERS[number % len(_MARKERS)]
            xs, ys = zip(*points, strict=True)
            axes.plot(
                xs,
                ys,
                color=LIGHT[colour],
                marker=marker,
                markersize=5,
                linewidth=1.3 if behind else 2,
                zorder=1 if behind else 2,
                label=None if behind else name,
            )
            number += not behind
        self._scale(axes)
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        axes.grid(alpha=0.5, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)

    def _scale(self, axes: Axes) -> None:
        if self.log_x:
            axes.set_xscale("log")
            ticks = sorted({x for points in self.lines.values() for x, _ in points})
            axes.set_xticks(ticks, [f"{x:,.6g}" for x in ticks])
            axes.minorticks_off()
        if self.log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, None)
        axes.yaxis.set_major_formatter(lambda at, _: f"{at:,.10g}")


Panel = Bars | Curves


def chart(name: str, *panels: Panel) -> str:
    """The panels side by side, as SVG."""
    with rc_context(_SETTINGS | {"svg.hashsalt": name}):
        figure = Figure(figsize=(8.4, max(panel.height for panel in panels)), layout="constrained")
        FigureCanvasSVG(figure)
        places = figure.subplots(1, len(panels), squeeze=False)[0]
        for panel, axes in zip(panels, places, strict=True):
            axes.set_title(panel.title, fontsize=11, loc="left", fontweight="bold", pad=10)
            panel.draw(axes)
        _legend(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    data = json.dumps([panel.data() for panel in panels], ensure_ascii=False)
    title = "; ".join(panel.title for panel in panels)
    return _themed(file.getvalue(), title, data)


def _legend(figure: Figure) -> None:
    """One for all panels, below them, where it hides nothing."""
    found = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        if isinstance(handle, Line2D)
    }
    if found:
        figure.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=len(found),
            frameon=False,
            fontsize=9,
        )


def numbers_of(svg: str) -> Any:
    """The numbers that a chart was drawn from."""
    found = re.search(r'<metadata class="numbers">(.*?)</metadata>', svg, re.DOTALL)
    assert found, "the file has no numbers"
    return json.loads(found[1].replace("&lt;", "<").replace("&amp;", "&"))


def _themed(svg: str, title: str, data: str) -> str:
    """Names for colours, the page's font, no ids but those that are referred to."""
    body = svg[svg.index("<defs>") : svg.rindex("</svg>")]
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    for name, value in LIGHT.items():
        body = body.replace(value, f"var(--{name})")
    body = re.sub(r"font: ([^;\"]*?)([\d.]+px)[^;\"]*", _font, body)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size
    escaped = data.replace("&", "&amp;").replace("<", "&lt;")
    heading = title.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'class="pic" role="img" viewBox="0 0 {size[1]} {size[2]}" width="760">\n'
        f'<title>{heading}</title>\n<metadata class="numbers">{escaped}</metadata>\n'
        f"{STYLE}\n{body}</svg>\n"
    )


def _font(found: re.Match[str]) -> str:
    weight = "font-weight: 600; " if "600" in found[1] or "bold" in found[1] else ""
    return f"{weight}font-size: {found[2]}"


def _seen(value: float) -> float:
    return float(f"{value:.4g}")
