"""Star plan: how the memory of a star is divided, and why."""

from __future__ import annotations

from dataclasses import dataclass

from semistream.display.html import block, table
from semistream.display.sizes import memory_text
from semistream.display.svg import bar

__all__ = ["LookupShare", "StarPlan"]


@dataclass(frozen=True)
class LookupShare:
    """What one look-up has of the memory."""

    name: str
    memory: int
    least: int
    """With less it cannot run."""
    seconds: float
    """What it is expected to take for a stream tuple, if half of its pages are in memory."""
    whole: bool = False
    """Whether all of the master is kept in memory."""

    def line(self) -> str:
        """As text."""
        kept = ", all of it kept in memory" if self.whole else ""
        return (
            f"  {self.name:<14} {self.memory:>14,}  {self.seconds * 1e6:,.2f} µs a tuple{kept}; "
            f"the least is {self.least:,}"
        )


@dataclass(frozen=True)
class StarPlan:
    """How the budget is divided. The shares and `held` never pass `memory`."""

    memory: int
    held: int
    """For the tuples of a round and the master rows that were found for them."""
    tuples: int
    """About how many tuples a round can have."""
    shares: tuple[LookupShare, ...]
    seconds_if_equal: float | None
    """What a tuple would take if all look-ups had equal shares; None if one had too little."""

    @property
    def seconds(self) -> float:
        """What all look-ups are expected to take for a stream tuple."""
        return sum(share.seconds for share in self.shares)

    def _repr_html_(self) -> str:
        """The shares as a picture and a table, for notebooks."""
        parts = {"rounds": self.held} | {share.name: share.memory for share in self.shares}
        rows = [
            (
                share.name,
                memory_text(share.memory),
                memory_text(share.least),
                f"{share.seconds * 1e6:,.2f}",
                "all of it" if share.whole else "",
            )
            for share in self.shares
        ]
        return block(
            f"{len(self.shares)} look-ups in {memory_text(self.memory)}",
            bar("Memory by look-up", parts, self.memory, memory_text),
            table(["look-up", "memory", "at least", "µs a tuple", "kept"], rows),
        )

    def explain(self) -> str:
        """The shares as text, one a line, and why they are so."""
        lines = [
            f"{len(self.shares)} look-ups in {self.memory:,} bytes",
            f"  {'rounds':<14} {self.held:>14,}  about {self.tuples:,} tuples at a time",
            *(share.line() for share in self.shares),
            f"expected: {self.seconds * 1e6:,.2f} µs a tuple in all"
            + (
                ""
                if self.seconds_if_equal is None
                else f", {self.seconds_if_equal * 1e6:,.2f} with equal shares"
            ),
            "  each further byte went where it saves most time, by the cost model, if half of the "
            "pages are in memory",
        ]
        return "\n".join(lines)
