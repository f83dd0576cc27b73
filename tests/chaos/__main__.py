"""Attacks semistream with seeded cases: `python -m tests.chaos --minutes 2 --seed 1`.

Prints a table of what happened, and how to run a case again that went wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter

from tests.chaos.attack import CRASHED, FAULTS, Attack
from tests.chaos.registry import ATTACKS


def run_batch(attack: Attack, seed: int, first: int, stop: int) -> list[tuple[int, str, str]]:
    """The verdicts of some cases, from a child process; a case that ends it has crashed."""
    verdicts: list[tuple[int, str, str]] = []
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
        verdicts += [(number, kind, note) for number, kind, note in lines]
        first = lines[-1][0] + 1 if lines else first
        if child.returncode == 0:
            break
        verdicts.append((first, CRASHED, f"code {child.returncode}: {child.stderr[-600:]}"))
        first += 1
    return verdicts


def main() -> int:
    """Run attacks in turn until the time is over; 1 if one of them found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attack", action="append", choices=sorted(ATTACKS), help="only these")
    parser.add_argument("--case", type=int, help="run just this case of the attack again")
    asked = parser.parse_args()
    attacks = [ATTACKS[name] for name in asked.attack or ATTACKS]
    counts = {attack.name: Counter[str]() for attack in attacks}
    found: list[tuple[str, int, str, str]] = []
    end = time.monotonic() + 60 * asked.minutes
    first = dict.fromkeys(counts, 0)
    while True:
        for attack in attacks:
            start = first[attack.name] if asked.case is None else asked.case
            stop = start + (attack.per_child if asked.case is None else 1)
            for number, kind, note in run_batch(attack, asked.seed, start, stop):
                counts[attack.name][kind] += 1
                if kind in FAULTS:
                    found.append((attack.name, number, kind, note))
            first[attack.name] = stop
            if time.monotonic() > end:
                break
        if time.monotonic() > end or asked.case is not None:
            break
    width = max(map(len, counts))
    print(f"{'attack':{width}}  cases  {'  '.join(FAULTS)}")
    for name, count in counts.items():
        cells = "  ".join(f"{count[kind]:{len(kind)}}" for kind in FAULTS)
        print(f"{name:{width}}  {sum(count.values()):5}  {cells}")
    for name, number, kind, note in found[:20]:
        print(
            f"\n{kind}: python -m tests.chaos --seed {asked.seed} --attack '{name}' --case {number}"
        )
        print(note.strip())
    print(f"\nseed {asked.seed}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
