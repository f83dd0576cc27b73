"""Join plan: an algorithm and the sizes of its parts."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    parts: dict[str, int] = field(default_factory=dict)

    @property
    def pinned_in_disk_buffer(self) -> int:
        """Pinned partitions that stay as they are; those of a front stage are taken apart."""
        return 0 if self.admission == "pinned" else self.pinned_partitions

    def explain(self) -> str:
        """The sizes as text, one part a line."""
        sizes = [f"partition {self.partition_pages} pages"]
        if self.look_ups:
            sizes.append(f"{self.look_ups} look-ups at a time")
        if self.stream_slots:
            sizes.append(f"{self.stream_slots:,} waiting tuples")
        if self.chunk_tuples:
            sizes.append(f"{self.chunk_tuples:,} tuples per iteration")
        if self.pinned_partitions:
            sizes.append(f"{self.pinned_partitions} pinned partitions")
        if self.front_rows:
            sizes.append(f"front stage for {self.front_rows:,} master rows")
        lines = [f"{self.algorithm} in {self.memory:,} bytes: {', '.join(sizes)}"]
        lines += [f"  {name:<14} {size:>14,}" for name, size in self.parts.items()]
        return "\n".join(lines)
