"""What attacks found: groups of cases as JSON lines, and the table of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.chaos.attack import FAULTS


@dataclass(frozen=True)
class Group:
    """Some cases of one attack, which ran one after the other."""

    attack: str
    seed: int
    first: int
    """The number of the first case."""
    cases: int
    struck: int
    """How many kills, faults, files or joins they had."""
    seconds: float
    faults: dict[str, int]
    """How many cases went wrong, by how."""
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        """As JSON, with the end of the line."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def read(cls, paths: Iterable[Path]) -> list[Group]:
        """The groups of these files."""
        return [cls(**json.loads(line)) for path in paths for line in path.read_text().splitlines()]


def table(groups: Sequence[Group]) -> str:
    """A line for each attack, and their sum, as Markdown."""
    names = list(dict.fromkeys(group.attack for group in groups))
    width = max(map(len, [*names, "attack"]))
    heads = ("cases", "struck", *FAULTS, "minutes")
    lines = [
        f"| {'attack':{width}} | {' | '.join(heads)} |",
        f"| {'-' * width} | {' | '.join('-' * (len(head) - 1) + ':' for head in heads)} |",
    ]
    for name in [*names, "all"]:
        some = [group for group in groups if name in (group.attack, "all")]
        counts = [sum(group.cases for group in some), sum(group.struck for group in some)]
        counts += [sum(group.faults[kind] for group in some) for kind in FAULTS]
        counts.append(round(sum(group.seconds for group in some) / 60))
        cells = (f"{n:{len(head)},}" for n, head in zip(counts, heads, strict=True))
        lines.append(f"| {name:{width}} | {' | '.join(cells)} |")
    return "\n".join(lines)
