"""Attacks semistream with seeded cases: `python -m tests.chaos --minutes 2 --seed 1`.

Prints a table of what happened, and how to run a case again that went wrong. With `--results` each
group of cases is also a JSON line in a file, and `--table` prints the table of such files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.chaos.attack import CRASHED, FAULTS, Attack
from tests.chaos.registry import ATTACKS
from tests.chaos.results import Group, table


class Told(NamedTuple):
    """What a child process told of one case."""

    number: int
    kind: str
    note: str
    struck: int = 1


def run_batch(attack: Attack, seed: int, first: int, stop: int) -> list[Told]:
    """The verdicts of some cases, from a child process; a case that ends it has crashed."""
    verdicts: list[Told] = []
    while first < stop:
        command = [
            sys.executable,
            "-m",
            "tests.chaos.child",
            attack.name,
            *map(str, (seed, first, stop)),
        ]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("[")]
        verdicts += [Told(*line) for line in lines]
        first = lines[-1][0] + 1 if lines else first
        if child.returncode == 0:
            break
        verdicts.append(Told(first, CRASHED, f"code {child.returncode}: {child.stderr[-600:]}"))
        first += 1
    return verdicts


class Run:
    """Attacks in turn, with what came of them."""

    def __init__(self, seed: int, results: Path | None) -> None:
        self._seed, self._results = seed, results
        self.groups: list[Group] = []
        self.found: list[tuple[str, Told]] = []

    def cases(self, attack: Attack, first: int, stop: int) -> None:
        """Run these cases of an attack."""
        began = time.monotonic()
        told = run_batch(attack, self._seed, first, stop)
        kinds = Counter(one.kind for one in told)
        group = Group(
            attack=attack.name,
            seed=self._seed,
            first=first,
            cases=len(told),
            struck=sum(one.struck for one in told),
            seconds=round(time.monotonic() - began, 1),
            faults={kind: kinds[kind] for kind in FAULTS},
            notes=[f"{one.number} {one.kind}: {one.note}" for one in told if one.kind in FAULTS],
        )
        self.groups.append(group)
        self.found += [(attack.name, one) for one in told if one.kind in FAULTS]
        if self._results is not None:
            with open(self._results, "a") as file:
                file.write(group.line())

    def until(
        self,
        end: float,
        attacks: Iterable[Attack],
        first: int,
        cases: int | None,
        per_child: int | None,
    ) -> None:
        """Take turns until the time is over, or each attack has had so many cases.

        The first turns are short, so that every attack has one in a run of a few minutes.
        """
        at = dict.fromkeys(attacks, first)
        part = 8
        most = None if cases is None else first + cases
        while at:
            for attack in list(at):
                stop = at[attack] + (per_child or -(-attack.per_child // part))
                stop = stop if most is None else min(stop, most)
                self.cases(attack, at[attack], stop)
                at[attack] = stop
                if stop == most:
                    del at[attack]
                if time.monotonic() > end:
                    return
            part = max(1, part // 2)


def main() -> int:
    """Run attacks in turn until the time is over; 1 if one of them found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attack", action="append", choices=sorted(ATTACKS), help="only these")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--cases", type=int, help="at most so many cases of each attack")
    parser.add_argument("--per-child", type=int, help="cases that one child process runs")
    parser.add_argument("--case", type=int, help="run just this case of the attack again")
    parser.add_argument("--results", type=Path, help="a file to add JSON lines to")
    parser.add_argument("--table", type=Path, nargs="+", help="print what these files tell")
    asked = parser.parse_args()
    if asked.table:
        print(table(Group.read(asked.table)))
        return 0
    if asked.case is not None:
        asked.first, asked.cases = asked.case, 1
    attacks = [
        ATTACKS[name] for name in asked.attack or ATTACKS if asked.attack or ATTACKS[name].quick
    ]
    run = Run(asked.seed, asked.results)
    end = time.monotonic() + 60 * asked.minutes
    run.until(end, attacks, asked.first, asked.cases, asked.per_child)
    print(table(run.groups))
    for name, one in run.found[:20]:
        again = f"--seed {asked.seed} --attack '{name}' --case {one.number}"
        print(f"\n{one.kind}: python -m tests.chaos {again}\n{one.note.strip()}")
    print(f"\nseed {asked.seed}")
    return 1 if run.found else 0


if __name__ == "__main__":
    sys.exit(main())
