"""Join plan: an algorithm, the sizes of its parts, and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from semistream.rate_curve import RateCurve

_CHARTED: Final = (0.125, 0.177, 0.25, 0.354, 0.5, 0.707, 1, 1.125, 1.25, 1.5, 2, 2.83, 4, 8)
"""Multiples of the memory that a chart has."""


@dataclass(frozen=True)
class Expectation:
    """What the cost model expects of a plan, for a stream that never runs dry."""

    rate: float
    """Stream tuples finished per second (μ)."""
    io_per_tuple: float
    """Pages of R read per stream tuple."""
    hit_share: float
    """The share of stream tuples that the front stage answers."""
    wait_seconds: float
    """How long a stream tuple waits on average."""
    seconds: Mapping[str, float]
    """Seconds per stream tuple, by cost factor."""
    rivals: tuple[tuple[str, float], ...] = ()
    """The rates of the other algorithms with the same memory, the best first."""
    curve: tuple[tuple[int, float], ...] = ()
    """Budgets and the rates that they would give."""
    basis: tuple[str, ...] = ()
    """What all this rests on: the skew, the cost factors."""
    exponent: float | None = None
    """The Zipf exponent of the stream that it is for."""
    rates_at: Callable[[Iterable[int]], Iterable[tuple[int, float]]] | None = field(
        default=None, compare=False, repr=False
    )
    """Gives the rates of other budgets; None where the model is no longer at hand."""

    def lines(self, memory: int) -> list[str]:
        """As text."""
        costly = sorted(self.seconds.items(), key=lambda item: -item[1])[:3]
        total = sum(self.seconds.values()) or 1.0
        found = [
            f"expected: {self.rate:,.0f} tuples/s, {self.io_per_tuple * 1000:,.2f} pages per 1,000 "
            f"tuples, {self.hit_share:.0%} answered in front, wait {_time(self.wait_seconds)}",
            "  time goes to " + ", ".join(f"{name} {s / total:.0%}" for name, s in costly if s),
        ]
        if self.rivals:
            shown = ", ".join(f"{name} {rate:,.0f}" for name, rate in self.rivals[:4])
            found.append(f"  instead of {shown}")
        for size, rate in self.curve:
            if size != memory:
                found.append(
                    f"  {_bytes(abs(size - memory))} {'more' if size > memory else 'less'}: "
                    f"{rate:,.0f} tuples/s ({rate / self.rate - 1:+.0%})"
                )
        return found + [f"  {line}" for line in self.basis]


@dataclass(frozen=True)
class JoinPlan:
    """How the budget is divided. `parts` has the bytes of each part; they never pass `memory`.

    Paper symbols: `partition_pages` b or k, `stream_slots` h_S, `chunk_tuples` w of MESHJOIN,
    `pinned_partitions` the non-swappable part (l in Optimised X-HYBRIDJOIN, in partitions).
    """

    algorithm: str
    memory: int
    partition_pages: int
    stream_slots: int
    chunk_tuples: int
    pinned_partitions: int
    heap_bytes: int
    fragment_bytes: int
    pairs: int
    stream_chunk_rows: int
    frames: int = 2
    front_rows: int = 0
    front_heap_bytes: int = 0
    front_most_rows: int = 0
    admission: str = ""
    threshold: int = 0
    recent_codes: int = 0
    look_ups: int = 0
    found_bytes: int = 0
    in_place_rows: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """With these options an engine of this algorithm and memory has these sizes."""
    expected: Expectation | None = field(default=None, compare=False)
    notes: tuple[str, ...] = ()
    """What is done besides, in words."""

    @property
    def pinned_in_disk_buffer(self) -> int:
        """Pinned partitions that the disk buffer keeps; a front stage keeps single rows instead."""
        return 0 if self.admission == "pinned" else self.pinned_partitions

    @property
    def buffered_pages(self) -> int:
        """Pages of a frame of the disk buffer; look-ups have frames of their own for partitions."""
        return 1 if self.look_ups else self.partition_pages

    def explain(self) -> str:
        """The sizes as text, one part a line, and what is expected."""
        lines = [f"{self.algorithm} in {self.memory:,} bytes: {', '.join(self.sizes())}"]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  {name:<14} {size:>14,}" for name, size in self.parts.items()]
        if self.expected is not None:
            lines += self.expected.lines(self.memory)
        return "\n".join(lines)

    def chart(self) -> RateCurve:
        """Rate against memory, from an eighth to eight times as much; print it, or show it.

        The model works it out now, which takes a second or two.
        """
        if self.expected is None:
            return RateCurve((), self.memory)
        points = dict(self.expected.curve)
        if self.expected.rates_at is not None:
            sizes = [int(self.memory * factor) for factor in _CHARTED]
            points |= dict(self.expected.rates_at(sizes))
        return RateCurve.of(points.items(), self.memory)

    def sizes(self) -> list[str]:
        """Its sizes in words."""
        sizes = [f"partition {self.partition_pages} pages"]
        if self.look_ups:
            sizes.append(f"{self.look_ups} look-ups at a time")
        if self.stream_slots:
            sizes.append(f"{self.stream_slots:,} waiting tuples")
        if self.chunk_tuples:
            sizes.append(f"{self.chunk_tuples:,} tuples per iteration")
        if self.pinned_partitions:
            sizes.append(f"{self.pinned_partitions} pinned partitions")
        if self.in_place_rows:
            sizes.append("pages in memory searched in place")
        if self.front_rows:
            sizes.append(f"front stage for {self.front_rows:,} master rows")
        return sizes

    def _repr_html_(self) -> str:
        """A picture of the plan, for notebooks."""
        from semistream.plan_picture import plan_html

        return plan_html(self)


def _bytes(size: int) -> str:
    """Bytes in a unit that people read.

    >>> _bytes(64 << 20), _bytes(1500)
    ('64.0 MB', '1.5 KB')
    """
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _time(seconds: float) -> str:
    """Seconds in a unit that people read.

    >>> _time(0.0123), _time(75.0)
    ('12.3 ms', '75.0 s')
    """
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
