"""Settings: one point of a figure, as data.

A setting is written in the paper's sizes. At a smaller scale, R, the waiting tuples and the front
stage shrink by one factor, and partitions keep their rows. So the tuples matched per partition,
h_S × d / R, stay the same, and the priced rate with them. One thing changes: a Zipf law over fewer
keys puts a little more of the stream on a given share of the keys.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from semistream.algorithms.registry import needs_of
from semistream.algorithms.sizing import Needs
from semistream.errors import OptionError
from semistream_papers.runs.platforms import MYSQL, PLATFORMS, Platform

__all__ = ["SCALES", "Setting", "scaled"]

SCALES: Final[dict[str, dict[str, float]]] = {
    "smoke": {"raw disk": 1 / 70, "mysql": 1 / 40, "cached": 1 / 1000},
    "laptop": {"raw disk": 1 / 10, "mysql": 1 / 8, "cached": 1 / 200},
    "paper": {"raw disk": 1.0, "mysql": 1.0, "cached": 1.0},
}
"""How much of the paper's sizes is run, by the family of the figure."""

_SEED: Final = 2007
_INLJ_MEMORY: Final = 50_000_000
"""Of an algorithm without sizes, which is INLJ: its rate does not depend on the memory."""


@dataclass(frozen=True)
class Setting:
    """What is joined, with what, and how it is measured. Sizes are the paper's."""

    algorithm: str
    rows: int
    """Rows of R."""
    memory: int
    """Bytes."""
    platform: str = "mysql"
    exponent: float = 1.0
    """Of the stream's Zipf law."""
    scatter: bool = False
    """Whether frequent keys are scattered over R; else R is in order of frequency."""
    row_bytes: int = 120
    tuple_bytes: int = 20
    stream: str = "zipf"
    """ "zipf", "local" (25 intervals) or "weather" (longitudes)."""
    relation_exponent: float | None = None
    """Skew of the join attribute in R; None where it is a key."""
    rows_per_key: int = 1
    partition_rows: int = 0
    """Rows of a partition; 0 lets the engine choose."""
    scan_rows: int = 0
    """Rows of a partition for the algorithms that scan R."""
    pinned_rows: int = 0
    """Rows of the non-swappable part, or of H_R; 0 lets the engine choose."""
    stream_slots: int = 0
    """Tuples that can wait; 0 for as many as the memory holds."""
    front_percent: int = 15
    threshold: int = 0
    """Of the front stage; 0 for a threshold that adapts."""
    arrival_rate: float = 0.0
    """Tuples per second that arrive; 0 for as many as can be joined."""
    shedding: str = ""
    """The strategy under overload."""
    shed_to_network: bool = False
    look_up_position: float = 0.15
    growth: float = 1.0
    """By which factor R grows in the middle of the run."""
    page_bytes: int = 65536
    factor: float = 1.0
    """How much of the paper's sizes is run."""
    seed: int = _SEED

    @property
    def needs(self) -> Needs:
        """What its algorithm asks for: which sizes it has, whether tuples wait in a queue."""
        return needs_of(self.algorithm)

    @property
    def priced_by(self) -> Platform:
        """The machine of the paper."""
        return PLATFORMS.get(self.platform, MYSQL)

    @property
    def run_rows(self) -> int:
        """Rows of R in this run."""
        return max(1, round(self.rows * self.factor))

    @property
    def domain(self) -> int:
        """Different keys that the stream can ask for."""
        return max(1, self.run_rows // self.rows_per_key)

    def __str__(self) -> str:
        given = [f"{self.rows:,} rows", f"{self.memory / 1e6:,.1f} MB", f"z={self.exponent:g}"]
        return f"{self.algorithm} on {', '.join(given)}"

    def key(self, timing: str) -> str:
        """The name of its result: the same for the same parameters only."""
        text = json.dumps(asdict(self) | {"timing": timing}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def with_(self, **changes: Any) -> Setting:
        """The same with some parameters changed; memory below 1 is a share of R's bytes."""
        share = changes.get("memory")
        changed = replace(self, **{k: v for k, v in changes.items() if k != "memory"})
        if share is None:
            return changed
        size = share if share >= 1 else share * changed.rows * changed.row_bytes
        return replace(changed, memory=int(size))


def scaled(setting: Setting, scale: str) -> Setting:
    """The setting at a scale, with defaults for all that its algorithm does not use.

    So figures that differ only in unused parameters share their runs.
    """
    if scale not in SCALES:
        raise OptionError(f"scale is {scale!r}; use one of {', '.join(SCALES)}.")
    needs = setting.needs
    unused: dict[str, Any] = {"scan_rows": 0}
    if "front_percent" not in needs.options:
        unused |= {"front_percent": 15, "threshold": 0}
    if "pinned_partitions" not in needs.options:
        unused |= {"pinned_rows": 0}
    if setting.shedding != "considering":
        unused |= {"look_up_position": 0.15}
    if not needs.options:
        unused |= {"memory": _INLJ_MEMORY, "partition_rows": 0}
    return replace(setting, factor=SCALES[scale][setting.platform], **unused)
