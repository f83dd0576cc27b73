"""A batch log whose files are damaged: an error that says so, or the records as they were."""

from __future__ import annotations

import random
from pathlib import Path

from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, Counts, Outcome
from tests.chaos.attack import FINE, WRONG, Attack, Verdict
from tests.chaos.damage import harm


def _case(rng: random.Random, folder: Path) -> Verdict:
    log = BatchLog(folder)
    log.identity()
    for number in range(rng.randint(1, 4)):
        record = BatchRecord(number, number, 1.0 + number, 1, ("a",))
        log.begin(record)
        counts = Counts(source=3, joined=3, outputs=3)
        if number < 3:
            log.finish(Outcome(number, number, 1.0, 1, counts, counts, 0.5, None, 0, 0))
    known = (log.last_record, log.last_outcome, log.records())
    path = rng.choice(sorted((folder / "batches").iterdir()))
    data = bytearray(path.read_bytes())
    note = f"{path.name}: {harm(rng, data)}"
    path.write_bytes(data)
    again = BatchLog(folder)
    again.identity()
    list(again.outcomes(-1))
    same = (again.last_record, again.last_outcome, again.records()) == known
    return Verdict(FINE if same else WRONG, note)


ATTACK = Attack("damaged batch log", _case)
