"""A child process: runs some cases of one attack, and prints a line for each before the next."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from semistream.errors import InternalError, SemistreamError
from tests.chaos.attack import UNCLEAR, Attack, Verdict, case_random
from tests.chaos.registry import ATTACKS


def judged(attack: Attack, seed: int, number: int, folder: Path) -> Verdict:
    """Run one case. An error that a case lets through must be one of semistream's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return attack.case(case_random(seed, attack.name, number), folder)
    except InternalError:
        return Verdict(UNCLEAR, traceback.format_exc(limit=-4))
    except SemistreamError:
        return Verdict()
    except Exception:
        return Verdict(UNCLEAR, traceback.format_exc(limit=-4))


def main() -> None:
    """Arguments: the attack, the seed, the first case and the one after the last."""
    attack = ATTACKS[sys.argv[1]]
    seed, first, stop = map(int, sys.argv[2:5])
    for number in range(first, stop):
        folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        try:
            verdict = judged(attack, seed, number, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        told = [number, verdict.kind, verdict.note, verdict.struck]
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
