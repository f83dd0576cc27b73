"""A picture of each algorithm: which parts it has, and which way a tuple goes through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from site_parts.canvas import Box, Canvas

__all__ = ["ALGORITHM_PICTURES", "Shape"]


@dataclass(frozen=True)
class Shape:
    """An algorithm as a choice of parts."""

    name: str
    behind: str
    """How pages are found: "look-up" of each tuple, a "scan", or for the "oldest" waiting tuple."""
    front: str = ""
    """A front stage that is "pinned", "learned", or none."""
    pinned: bool = False
    """Whether some partitions stay in the disk buffer."""
    window: str = "the window"

    def picture(self) -> Canvas:
        """It, drawn."""
        c = Canvas(f"algorithm-{self.name}", f"How {self.name} joins a tuple.", height=330)
        stream = c.box(14, 50, 96, 60, "stream", "tuples")
        out = c.box(650, 50, 96, 60, "output", "pairs", colour="pic-3")
        last = self._front(c, stream, out)
        middle = self._waiting(c, last)
        self._disk(c, middle, out)
        return c

    def _front(self, c: Canvas, stream: Box, out: Box) -> Box:
        if not self.front:
            return stream
        words = "rows of the first pages" if self.front == "pinned" else "rows asked for often"
        front = c.box(160, 50, 160, 60, "front stage", words, colour="pic-2")
        c.arrow(stream.right, front.left)
        c.arrow(front.top, (240, 22), (698, 22), out.top, colour="pic-2")
        c.text(300, 16, "hit: leaves at once", soft=True, anchor="start")
        return front

    def _waiting(self, c: Canvas, last: Box) -> Box:
        words = {
            "look-up": ("one tuple", "nothing waits"),
            "scan": (self.window, "tuples in order of arrival"),
            "oldest": ("waiting tuples", "by key, and in a queue"),
        }[self.behind]
        box = c.box(384, 50, 190, 60, *words, colour="pic-1")
        c.arrow(last.right, box.left, words="miss" if self.front else "")
        return box

    def _disk(self, c: Canvas, middle: Box, out: Box) -> None:
        buffer = c.box(384, 160, 190, 56, "disk buffer", self._buffered(), colour="pic-4")
        c.arrow(buffer.top, middle.bottom, words="match", at=(486, 139), anchor="start")
        c.arrow(middle.right, out.left)
        chosen = {"look-up": {6}, "scan": {5, 6}, "oldest": {6, 7}}[self.behind]
        for i in range(14):
            first = self.front == "pinned" or self.pinned
            colour = "pic-4" if i in chosen else "pic-2" if first and i < 2 else ""
            c.box(160 + 30 * i, 272, 25, 34, colour=colour)
        c.text(14, 286, "master,", bold=True, anchor="start")
        c.text(14, 304, "pages on disk", soft=True, anchor="start")
        x = 160 + 30 * min(chosen) + (12 if len(chosen) == 1 else 28)
        c.arrow((x, 272), (440, 217), colour="pic-4")
        if self.behind == "scan":
            c.arrow((160, 318), (574, 318), colour="pic-4")
            c.text(590, 322, "round and round", soft=True, anchor="start")
        else:
            index = c.box(160, 160, 160, 56, "index", "which page has the key?")
            words = "its key" if self.behind == "look-up" else "oldest key"
            c.arrow((400, 110), (306, 159), words=words, at=(316, 142), anchor="end", dashed=True)
            c.arrow(index.bottom, (x - 14, 270), dashed=True)
        if self.front == "learned":
            c.arrow((384, 200), (346, 200), (346, 98), (322, 98), colour="pic-2", dashed=True)
        if self.pinned:
            c.arrow((186, 270), (186, 246), (420, 246), (420, 218), colour="pic-2", dashed=True)
            c.text(14, 250, "these stay in memory", soft=True, anchor="start")
        if self.front == "pinned":
            c.arrow((186, 270), (140, 240), (140, 130), (176, 112), colour="pic-2", dashed=True)
            c.text(132, 200, "once", soft=True, anchor="end")

    def _buffered(self) -> str:
        if self.pinned:
            return "first pages, and some"
        return "a page" if self.behind == "look-up" else "a run of pages"


ALGORITHM_PICTURES: Final = (
    Shape("inlj", "look-up"),
    Shape("meshjoin", "scan", window="a window in equal chunks"),
    Shape("rmeshjoin", "scan", window="a window of any size"),
    Shape("hybridjoin", "oldest"),
    Shape("xhybridjoin", "oldest", pinned=True),
    Shape("oxhybridjoin", "oldest", front="pinned"),
    Shape("cinlj", "look-up", front="learned"),
    Shape("cmeshjoin", "scan", front="learned"),
    Shape("chybridjoin", "oldest", front="learned"),
)
"""One for each algorithm; a new one is a line here, or a picture of its own."""
