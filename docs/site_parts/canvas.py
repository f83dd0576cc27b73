"""A canvas for the pictures of the documentation: boxes, arrows and words, as SVG."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from site_parts.palette import STYLE

__all__ = ["Box", "Canvas"]


@dataclass(frozen=True)
class Box:
    """Where a box is, and the points at which arrows touch it."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> tuple[float, float]:
        """The middle of its left side."""
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> tuple[float, float]:
        """The middle of its right side."""
        return self.x + self.width, self.y + self.height / 2

    @property
    def top(self) -> tuple[float, float]:
        """The middle of its upper side."""
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> tuple[float, float]:
        """The middle of its lower side."""
        return self.x + self.width / 2, self.y + self.height


@dataclass
class Canvas:
    """Draws in the order of the calls."""

    name: str
    title: str
    """What the picture shows, for those who cannot see it."""
    width: int = 760
    height: int = 320
    _marks: list[str] = field(default_factory=list)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *lines: str,
        colour: str = "",
        dashed: bool = False,
    ) -> Box:
        """A box with words in its middle; the first line is bold."""
        fill = f"var(--{colour}-pale)" if colour else "var(--pic-box)"
        edge = f"var(--{colour})" if colour else "var(--pic-line)"
        if dashed:
            fill = "none"
        dash = ' stroke-dasharray="6 5"' if dashed else ""
        self._marks.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="{min(7, width / 4):g}" '
            f'style="fill:{fill};stroke:{edge};stroke-width:1.5"{dash}/>'
        )
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 18 * number, line, bold=number == 0, soft=number > 0)
        return Box(x, y, width, height)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        bold: bool = False,
        soft: bool = False,
        colour: str = "",
        anchor: str = "middle",
        size: float = 14,
    ) -> None:
        """One line of words."""
        fill = colour or ("pic-soft" if soft else "pic-ink")
        weight = ";font-weight:600" if bold else ""
        self._marks.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" '
            f'style="fill:var(--{fill});font-size:{size - (1 if soft else 0):g}px{weight}">'
            f"{escape(words)}</text>"
        )

    def arrow(
        self,
        *points: tuple[float, float],
        words: str = "",
        at: tuple[float, float] | None = None,
        colour: str = "pic-soft",
        dashed: bool = False,
        anchor: str = "middle",
    ) -> None:
        """An arrow along the points; its words stand at `at`, or above its middle."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._marks.append(
            f'<path d="M{path}" marker-end="url(#{self.name}-{colour})" '
            f'style="fill:none;stroke:var(--{colour});stroke-width:1.8"{dash}/>'
        )
        if words:
            (ax, ay), (bx, by) = points[0], points[1]
            x, y = at or ((ax + bx) / 2, (ay + by) / 2 - 7)
            self.text(x, y, words, soft=True, anchor=anchor)

    def svg(self) -> str:
        """The picture as a file."""
        body = "\n".join(self._marks)
        used = sorted({part.split(")")[0] for part in body.split(f"url(#{self.name}-")[1:]})
        heads = "".join(
            f'<marker id="{self.name}-{colour}" viewBox="0 0 10 10" refX="9" refY="5" '
            'markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0 0 L10 5 L0 10 z" style="fill:var(--{colour})"/></marker>'
            for colour in used
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="pic" role="img" '
            f'viewBox="0 0 {self.width} {self.height}" width="{self.width}">\n'
            f"<title>{escape(self.title)}</title>\n{STYLE}\n<defs>{heads}</defs>\n{body}\n</svg>\n"
        )
