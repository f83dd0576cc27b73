"""The pictures of concepts: how a read is shared, the front stage, exactly once, and versions."""

from __future__ import annotations

from itertools import pairwise

from site_parts.canvas import Box, Canvas

__all__ = ["CONCEPTS"]


def overview() -> Canvas:
    """All of it, for the README and the first page."""
    c = Canvas(
        "overview",
        "A stream of sales enters semistream, which holds popular rows and waiting tuples in one "
        "memory budget, reads pages of the master from disk, and hands rows to a warehouse.",
        height=300,
    )
    sales = c.box(14, 80, 118, 74, "stream", "sales, clicks,", "sensor readings")
    c.box(170, 14, 412, 192, dashed=True)
    c.text(186, 194, "all in one budget, such as 64 MB", soft=True, anchor="start")
    front = c.box(190, 80, 150, 74, "front stage", "rows that everyone", "asks for", colour="pic-2")
    waiting = c.box(
        408, 80, 154, 74, "waiting tuples", "many wait for", "the same page", colour="pic-1"
    )
    out = c.box(628, 80, 118, 74, "warehouse", "every row", "exactly once", colour="pic-3")
    c.arrow(sales.right, front.left)
    c.arrow(front.right, waiting.left, words="rest", at=(374, 110))
    c.arrow(waiting.right, out.left)
    c.arrow(front.top, (265, 48), (687, 48), out.top, colour="pic-2")
    c.text(376, 40, "known rows: out at once", soft=True)
    pages(c, 190, 246, 13, {8: "pic-1"})
    c.text(14, 262, "master data,", anchor="start", bold=True)
    c.text(14, 280, "larger than memory", anchor="start", soft=True)
    c.arrow((442, 246), (442, 156), colour="pic-1")
    c.text(454, 230, "one read serves them all", anchor="start", soft=True)
    return c


def pages(c: Canvas, x: float, y: float, count: int, coloured: dict[int, str]) -> list[Box]:
    """A row of pages on disk."""
    return [c.box(x + 30 * i, y, 25, 34, colour=coloured.get(i, "")) for i in range(count)]


def shared_read() -> Canvas:
    """A page read per tuple, and one for many."""
    c = Canvas(
        "shared-read",
        "On the left, five stream tuples cause five page reads. On the right, the five tuples wait "
        "together, and one page read finishes all of them.",
        height=310,
    )
    keys = ("412", "408", "415", "408", "411")
    c.text(180, 24, "A read for each tuple", bold=True)
    c.text(580, 24, "One read for all who wait", bold=True)
    for i, key in enumerate(keys):
        x = 30 + 62 * i
        top = c.box(x, 44, 52, 30, key, colour="pic-1")
        c.arrow(top.bottom, (x + 26, 218), colour="pic-2")
    left = c.box(30, 220, 300, 34, "page with keys 400 to 419")
    c.text(left.bottom[0], 284, "5 tuples, 5 reads", colour="pic-2", bold=True)
    c.box(416, 38, 328, 88, colour="pic-1", dashed=True)
    for i, key in enumerate(keys):
        c.box(430 + 62 * i, 50, 52, 30, key, colour="pic-1")
    c.text(580, 112, "they wait in memory, found by key", soft=True)
    page = c.box(430, 220, 300, 34, "page with keys 400 to 419")
    c.arrow(page.top, (580, 128), colour="pic-3")
    c.text(592, 168, "read once,", anchor="start", soft=True)
    c.text(592, 186, "matched with all", anchor="start", soft=True)
    c.text(580, 284, "5 tuples, 1 read", colour="pic-3", bold=True)
    return c


def front_stage() -> Canvas:
    """A few keys are most of the stream."""
    c = Canvas(
        "front-stage",
        "Bars show how often each key comes. The front stage keeps the few tallest in memory; "
        "their tuples leave at once. All other tuples wait for a page.",
        height=300,
    )
    c.text(200, 24, "how often a key comes", bold=True)
    base, count, kept = 236, 30, 4
    for i in range(count):
        height = 190 / (i + 1) ** 0.8
        colour = "pic-2" if i < kept else "pic-1"
        c.box(28 + 12 * i, base - height, 9, height, colour=colour)
    c.text(28, 258, "kept in memory", colour="pic-2", anchor="start", bold=True, size=13)
    c.text(
        160, 258, "the long tail stays on disk", colour="pic-1", anchor="start", bold=True, size=13
    )
    c.text(28, 282, "keys, the most popular first", anchor="start", soft=True)
    front = c.box(470, 60, 120, 56, "front stage", "single rows", colour="pic-2")
    waiting = c.box(470, 180, 120, 56, "waiting tuples", "share page reads", colour="pic-1")
    out = c.box(664, 60, 82, 56, "output", colour="pic-3")
    c.arrow((414, 88), front.left, words="tuples", at=(438, 80))
    c.arrow(front.right, out.left, words="hit")
    c.arrow(front.bottom, waiting.top, words="miss", at=(540, 152), anchor="start")
    c.arrow(waiting.right, (705, 208), out.bottom)
    c.arrow((488, 180), (488, 117), colour="pic-2", dashed=True)
    c.text(480, 152, "popular?", anchor="end", soft=True)
    return c


def exactly_once() -> Canvas:
    """A batch on its way, and what a kill does at each step."""
    c = Canvas(
        "exactly-once",
        "A batch is recorded, joined, staged, handed to the sinks and marked as done. A kill "
        "before staging joins it again, with the recorded master; after it, the staged rows go on.",
        height=270,
    )
    steps = [
        ("record", "master version,", "which tuples", "pic-1"),
        ("join", "inside the", "budget", "pic-1"),
        ("stage", "all routes, in", "the checkpoint", "pic-3"),
        ("hand on", "under the", "batch's number", "pic-3"),
        ("done", "counts agree,", "on record", "pic-3"),
    ]
    boxes = [
        c.box(14 + 150 * i, 40, 130, 78, name, one, two, colour=colour)
        for i, (name, one, two, colour) in enumerate(steps)
    ]
    for a, b in pairwise(boxes):
        c.arrow(a.right, b.left)
    c.box(
        14,
        166,
        280,
        78,
        "killed here?",
        "nothing is written: the batch runs again,",
        "with the same master version",
    )
    c.box(
        314,
        166,
        432,
        78,
        "killed here?",
        "the staged rows are handed on, not joined again;",
        "a sink that has this number skips it",
    )
    for x in (154, 530):
        c.arrow((x, 122), (x, 162), colour="pic-2")
    return c


def routes() -> Canvas:
    """Where a tuple can end."""
    c = Canvas(
        "routes",
        "Every tuple that arrives ends on one of four routes: joined, unmatched, deferred or "
        "rejected.",
        height=290,
    )
    arrived = c.box(20, 110, 130, 60, "arrived", "from the source")
    join = c.box(220, 110, 130, 60, "the join", colour="pic-1")
    c.arrow(arrived.right, join.left)
    ends = [
        ("joined", "has a master row → the sink", "pic-3"),
        ("unmatched", "no row yet → tried again, or out with nulls", "pic-5"),
        ("deferred", "too many for now → waits for a quieter batch", "pic-4"),
        ("rejected", "null key, failed check → set aside, with the reason", "pic-2"),
    ]
    for i, (name, what, colour) in enumerate(ends):
        y = 16 + 68 * i
        box = c.box(400, y, 346, 54, name, what, colour=colour)
        c.arrow(join.right, (374, 140), (374, y + 27), box.left)
    c.text(185, 210, "arrived = joined + unmatched", soft=True)
    c.text(185, 230, "+ deferred + rejected", soft=True)
    c.text(185, 250, "checked for every batch", soft=True)
    return c


def versions() -> Canvas:
    """A pipeline and its master's versions."""
    c = Canvas(
        "versions",
        "The master's changes become versions 1, 2 and 3. Each batch of the running pipeline uses "
        "one version from its beginning to its end, and the next batch takes the newest.",
        height=250,
    )
    c.text(14, 62, "source", anchor="start", bold=True)
    c.text(14, 132, "master", anchor="start", bold=True)
    c.text(14, 202, "pipeline", anchor="start", bold=True)
    for i, (x, width) in enumerate(((110, 190), (310, 220), (540, 206))):
        c.box(x, 106, width, 42, f"version {i + 1}", colour=f"pic-{i + 1}")
    for x, words in ((300, "changes"), (530, "changes")):
        c.text(x, 50, words, soft=True)
        c.arrow((x, 58), (x + 8, 104), dashed=True)
    batches = [(110, 1), (232, 1), (354, 2), (476, 2), (598, 3)]
    for i, (x, number) in enumerate(batches):
        box = c.box(x, 178, 112, 44, f"batch {i + 1}", colour=f"pic-{number}")
        c.arrow(box.top, (box.top[0], 150), colour=f"pic-{number}")
    return c


CONCEPTS = (overview, shared_read, front_stage, exactly_once, routes, versions)
"""One function for each picture."""
