"""Kills at the named crash points of all that must survive one, without Spark.

A child process does some work and is killed at a point. What it has said to have done, it says in a
journal first. Then the work is done again, or gone on with, and what is there is compared with the
journal: nothing lost, nothing twice, and nothing on the disk that should not be there.
"""

from __future__ import annotations

import os
import random
import signal
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import semistream as ss
from semistream import crash_points
from semistream.errors import SemistreamError
from semistream.parts.learned import Learned
from semistream.parts.shed_file import ShedFile
from semistream.relation.following import tidied
from semistream.spark.learned_file import LearnedFile
from semistream.spark.pipeline import lease as lease_module
from semistream.spark.pipeline.batch_log import BatchLog, BatchRecord, Counts, Outcome
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.lease import Lease
from tests.chaos.attack import FINE, LOST, TWICE, WRONG, Attack, Verdict
from tests.chaos.storage_faults import (
    PROCESSES,
    Operation,
    Shop,
    joined,
    judged,
    left_over,
    tried,
)
from tests.differential.change_replay import newest, stored
from tests.differential.test_following import as_changes, batches, follow, random_changes

ROWS: Final = 40
Work = Callable[..., object]


def killed(point: str, times: int, work: Work, *arguments: Any) -> bool:
    """Do the work in a child process that ends at a point; whether it did."""
    child = PROCESSES.Process(target=_armed, args=(f"{point}:{times}", work, *arguments))
    child.start()
    child.join()
    if child.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"The child ended with {child.exitcode} at {point}.")
    return child.exitcode == -signal.SIGKILL


def _armed(at: str, work: Work, *arguments: Any) -> None:
    crash_points.arm(at)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work(*arguments)


class Journal:
    """What a process has begun and done: lines that survive it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def tell(self, *words: object) -> None:
        """Add a line."""
        with open(self.path, "a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def of(self, word: str) -> list[int]:
        """The numbers of the lines that begin with this word."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == word]


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# Master tables.

_COMMIT: Final = ("manifest.checked", "publish.hidden", "publish.linked", "manifest.published")
_UPDATE: Final = ("draft.begun", "update.pages", "update.index", "update.filter", *_COMMIT)
_BUILD: Final = ("draft.begun", "build.pages", "build.index", "build.filter", *_COMMIT)
_VACUUM: Final = ("vacuum.chosen", "vacuum.manifests", "vacuum.files")
_MASTER: Final = [
    *(("build", point) for point in (*_BUILD, "locator.pages")),
    *(("vacuum", point) for point in _VACUUM),
    *((name, point) for name in ("upsert", "delete", "compact") for point in _UPDATE),
    *((name, "locator.pages") for name in ("upsert", "delete", "compact")),
]


def _master(rng: random.Random, folder: Path, name: str, point: str) -> Verdict:
    """One step at a master table is killed at the point; then all goes on."""
    layout = "given" if point == "locator.pages" else rng.choice(["key", "given"])
    shop = Shop(folder / "r", np.random.default_rng(rng.getrandbits(64)), layout)
    struck = 0

    def run(operation: Operation) -> str:
        nonlocal struck
        dead = killed(point, 1, operation.perform)
        struck += dead
        return "killed" if dead else "done"

    def plain(operation: Operation) -> str:
        operation.perform()
        return "done"

    steps: list[tuple[str, Callable[[Operation], str]]] = [(name, run), ("upsert", plain)]
    if name != "build":
        steps = [("build", plain), ("upsert", plain), *steps]
    for step, how in steps:
        told = tried(shop, how, f"killed at {point}", step)
        if told != "ok":
            return judged(told)
    ss.MasterTable.open(shop.path).vacuum(keep_versions=1, grace_seconds=-1)
    joined(shop.path, shop.versions, "meshjoin")
    told = left_over(shop.path, max(shop.versions), f"{name} at {point}")
    return judged(told) if told != "ok" else Verdict(struck=struck)


# A master that follows its source.

_SYNC: Final = ("sync.booked", "sync.committed", *_UPDATE, *_VACUUM)


def _followed(folder: Path, seed: int) -> None:
    """Follow the same changes, in the same batches, from the first one on."""
    rng = np.random.default_rng(seed)
    for batch in batches(rng, random_changes(rng, 80, 10)):
        follow(folder / "m", as_changes(batch))
        tidied(folder / "m", 0.0, ())


def _sync_case(rng: random.Random, folder: Path, _: str, point: str) -> Verdict:
    seed = rng.getrandbits(32)
    empty = as_changes([]).rows
    ss.MasterTable.from_arrow(empty, folder / "m", key="id", page_bytes=4096, filter_bits=8)
    struck = sum(killed(point, rng.randint(1, 8), _followed, folder, seed) for _ in range(2))
    _followed(folder, seed)
    changes = random_changes(np.random.default_rng(seed), 80, 10)
    found = stored(ss.MasterTable.open(folder / "m"))
    rows = dict(zip(*(column.to_pylist() for column in found.columns), strict=True))
    note = f"follower killed at {point}"
    # Versions of the book that no master names are gone too.
    books = ss.MasterTable.open(folder / "m" / "book").history()
    kind = FINE if rows == newest(changes) and len(books) <= 3 else WRONG
    return Verdict(kind, f"{note}: {len(books)} books", struck)


# Shed tuples.

_SHED: Final = ("shed.opened", "shed.appended", "shed.cursor", "shed.struck", "shed.sealed")
_MEND: Final = ("shed.mended", "shed.aside", "shed.cursor")


def _shed(folder: Path, seed: int, first: int) -> None:
    """Shed, take and let go of numbered tuples, as a run does."""
    rng, journal = random.Random(seed), Journal(folder / "journal")
    file = ShedFile.recover(folder / "shed", max_bytes=1 << 16)
    taken: list[int] = []
    for number in range(first, first + 12):
        journal.tell("begun", number)
        file.append(0.0, pa.record_batch({"n": np.arange(number * ROWS, (number + 1) * ROWS)}))
        journal.tell("kept", number)
        file.sync_if_due()
        if rng.random() < 0.5:
            taken += [n for piece in file.take(ROWS) for n in piece.batch["n"].to_pylist()]
        if taken and rng.random() < 0.7:
            journal.tell("striking", taken[-1])
            file.let_go(len(taken))
            journal.tell("struck", taken[-1])
            taken = []
    file.close()


def _recovered(folder: Path) -> list[int]:
    file = ShedFile.recover(folder, max_bytes=1 << 16)
    found = [n for piece in file.take(len(file)) for n in piece.batch["n"].to_pylist()]
    file.close()
    return found


def _shed_case(rng: random.Random, folder: Path, _: str, point: str) -> Verdict:
    times = rng.randint(1, 1 if point in ("shed.opened", "shed.sealed") else 4)
    struck = killed(point, times, _shed, folder, rng.getrandbits(32), 0)
    fault = _shed_fault(folder)
    if fault == FINE:
        # The next run goes on in the same folder, and ends well.
        _shed(folder, rng.getrandbits(32), 100)
        fault = _shed_fault(folder)
    if fault == FINE:
        fault = _emptied(folder / "shed")
    return Verdict(fault, f"shedding killed at {point}", int(struck))


def _shed_fault(folder: Path) -> str:
    """What is wrong with the tuples that come back."""
    journal = Journal(folder / "journal")
    found = _recovered(folder / "shed")
    if found != sorted(found):
        return WRONG
    done = _after(journal.of("struck"))
    if len(set(found)) < len(found) or any(n < done for n in found):
        return TWICE
    sure = {n for number in journal.of("kept") for n in range(number * ROWS, (number + 1) * ROWS)}
    sure = {n for n in sure if n >= _after(journal.of("striking"))}
    known = {n for number in journal.of("begun") for n in range(number * ROWS, (number + 1) * ROWS)}
    return LOST if not sure <= {*found} else WRONG if not {*found} <= known else FINE


def _after(numbers: list[int]) -> int:
    return max(numbers, default=-1) + 1


def _emptied(folder: Path) -> str:
    """Whether nothing is left once all tuples are done, but damaged files kept aside."""
    file = ShedFile.recover(folder, max_bytes=1 << 16)
    file.take(len(file))
    file.let_go(file.taken)
    file.close()
    left = [name for name in _names(folder) if not name.startswith("damaged-")]
    return FINE if not left else f"{WRONG}: left over {left}"


def _mend_case(rng: random.Random, folder: Path, _: str, point: str) -> Verdict:
    """The run that finds damage in the middle of a segment is killed while it mends that."""
    killed("shed.appended", 12, _shed, folder, 1, 0)
    before = _read_only_copy(folder)
    (path,) = sorted((folder / "shed").glob("shed-*.arrows"))[-1:]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    dead = killed(point, 1, _recovered, folder / "shed")
    found = _recovered(folder / "shed")
    note = f"recovery killed at {point}: {len(found)} of {len(before)}"
    if len(set(found)) < len(found):
        return Verdict(TWICE, note)
    if not {*found} <= {*before} or found != sorted(found):
        return Verdict(WRONG, note)
    # One flipped bit costs one batch; the file as it was is kept, once.
    asides = list((folder / "shed").glob("damaged-*"))
    if len(before) - len(found) > ROWS or len(asides) != 1 or asides[0].read_bytes() != data:
        return Verdict(LOST, f"{note}, aside: {[path.name for path in asides]}")
    return Verdict(_emptied(folder / "shed"), note, int(dead))


def _read_only_copy(folder: Path) -> list[int]:
    """The tuples in the segments, read by Arrow alone, without those that the cursor has struck."""
    done = _after(Journal(folder / "journal").of("struck"))
    found = []
    for path in sorted((folder / "shed").glob("shed-*.arrows")):
        with pa.OSFile(str(path)) as source:
            reader = pa.ipc.open_stream(source)
            try:
                for batch in reader:
                    found += batch["n"].to_pylist()
            except (pa.ArrowInvalid, OSError):
                pass
    return [n for n in found if n >= done]


# The batch log.

_LOG: Final = ("log.begun", "log.finished", "log.forgotten", "publish.hidden", "publish.linked")


def _logged(folder: Path, batches: int) -> None:
    log, journal = BatchLog(folder / "home"), Journal(folder / "journal")
    log.identity()
    counts = Counts(source=3, joined=3, outputs=3)
    for _ in range(batches):
        record = log.unfinished or BatchRecord(log.next_number, log.next_number, 1.0, 1)
        if log.unfinished is None:
            journal.tell("beginning", record.number)
            log.begin(record)
            journal.tell("begun", record.number)
        log.finish(Outcome(record.number, record.number, 1.0, 1, counts, counts, 0.5, None, 0, 0))
        journal.tell("finished", record.number)


def _log_case(rng: random.Random, folder: Path, _: str, point: str) -> Verdict:
    # The pipeline's identity is published first.
    times = rng.randint(2, 6) if point.startswith("publish") else rng.randint(1, 4)
    struck = killed(point, times, _logged, folder, 4)
    journal, log = Journal(folder / "journal"), BatchLog(folder / "home")
    done = -1 if log.last_outcome is None else log.last_outcome.number
    begun = -1 if log.last_record is None else log.last_record.number
    note = f"log killed at {point}: {begun} begun, {done} done"
    if begun < max(journal.of("begun"), default=-1):
        return Verdict(LOST, note)
    if done < max(journal.of("finished"), default=-1):
        return Verdict(LOST, note)
    if begun > max(journal.of("beginning"), default=-1) or done > begun:
        return Verdict(WRONG, note)
    _logged(folder, 2)
    log = BatchLog(folder / "home")
    numbers = [record.number for record in log.records()]
    if numbers != list(range(len(numbers))) or len([*log.outcomes(-1)]) != len(numbers):
        return Verdict(WRONG, f"{note}: {numbers}")
    names = {f"batches/{n:08d}{end}" for n in numbers for end in (".json", ".done.json")}
    stray = {*_names(folder / "home")} - names - {"batches/pipeline.json"}
    return Verdict(WRONG if stray else FINE, f"{note}: left over {sorted(stray)}", int(struck))


# The lease.

_LEASE: Final = (
    "lease.taken",
    "lease.beaten",
    "lease.released",
    "publish.hidden",
    "publish.linked",
)


def _leased(folder: Path) -> None:
    for name in ("_BEAT_SECONDS", "_LOOK_SECONDS"):
        setattr(lease_module, name, 0.01)
    lease = Lease.take(folder, "child")
    beat = len(list((folder / "lease").glob("*.beat.*")))
    while not beat:
        beat = len(list((folder / "lease").glob("*.beat.*")))
    lease.release()


def _lease_case(rng: random.Random, folder: Path, _: str, point: str) -> Verdict:
    """A holder is killed: the next one gets the lease at once, and nothing stays but its turn."""
    struck = sum(killed(point, 1, _leased, folder) for _ in range(rng.randint(1, 2)))

    def sleep(seconds: float) -> None:
        raise RuntimeError("waited for a holder that is dead")

    lease = Lease.take(folder, "next", sleep=sleep)
    turn = max(int(path.name[:8]) for path in (folder / "lease").glob("*.json"))
    lease.release()
    stray = {*_names(folder)} - {f"lease/{turn:08d}.json", f"lease/{turn:08d}.released"}
    note = f"holder killed at {point}: left over {sorted(stray)}"
    return Verdict(WRONG if stray else FINE, note, struck)


# What a front stage has learned.

_LEARNED: Final = ("learned.hidden", "learned.replaced")


def _learned(count: int) -> Learned:
    return Learned(np.arange(count), np.full(count, count, np.float32))


def _learns(folder: Path, count: int) -> None:
    LearnedFile(str(folder), "join").write(_learned(count))


def _learned_case(rng: random.Random, folder: Path, _: str, point: str) -> Verdict:
    _learns(folder, 5)
    struck = killed(point, 1, _learns, folder, 9)
    found = LearnedFile(str(folder), "join").read(100)
    note = f"writer of learned keys killed at {point}"
    if len(found.codes) not in (5, 9) or (found.frequency != len(found.codes)).any():
        return Verdict(WRONG, note)
    for path in folder.iterdir():
        # Later, when nobody can be writing it any more.
        os.utime(path, (0, 0))
    _learns(folder, 7)
    stray = [name for name in _names(folder) if not name.endswith(".keys")]
    kind = WRONG if stray or len(LearnedFile(str(folder), "join").read(100).codes) != 7 else FINE
    return Verdict(kind, f"{note}: left over {stray}", int(struck))


# Folders that are filled and handed over.

_FOLDERS: Final = (
    "folder.written",
    "folder.noted",
    "folder.moved",
    "become.cleared",
    "become.noted",
    "become.moved",
    "note.hidden",
)


def _handed(folder: Path) -> None:
    """Stage some rows, and hand them over to a sink, as a batch does."""
    staged = Folder.at(folder / "staging") / "7"
    target = Folder.at(folder / "sink")
    target.claim("me", "sink=")

    def write(path: str) -> None:
        place = Path(path.removeprefix("file://")) / "route=joined"
        place.mkdir(parents=True)
        pq.write_table(pa.table({"n": range(ROWS)}), place / f"part-{os.getpid()}.parquet")

    staged.fill(write, lambda written: {"rows": written.row_count()})
    rows = staged / "route=joined"
    if rows.exists() or (target / "batch=7").note() is None:
        rows.become(target / "batch=7", {"rows": ROWS})


def _folder_case(rng: random.Random, folder: Path, _: str, point: str) -> Verdict:
    struck = killed(point, rng.randint(1, 3 if point == "note.hidden" else 1), _handed, folder)
    note = f"hand-over killed at {point}"
    target = folder / "sink" / "batch=7"
    if target.exists() and pq.read_table(target)["n"].to_pylist() != list(range(ROWS)):
        return Verdict(WRONG, f"{note}: a reader sees half")
    _handed(folder)
    found = pq.read_table(target)["n"].to_pylist()
    if found != list(range(ROWS)):
        return Verdict(TWICE if len(found) > ROWS else LOST, note)
    (Folder.at(folder / "staging") / "7").remove()
    stray = [n for n in _names(folder) if not n.startswith("sink/batch=7/part-")]
    stray = [n for n in stray if n not in ("sink/_semistream.json", "sink/batch=7/_committed.json")]
    return Verdict(WRONG if stray else FINE, f"{note}: left over {stray}", int(struck))


Case = Callable[[random.Random, Path, str, str], Verdict]

CASES: Final[list[tuple[Case, str, str]]] = [
    *((_master, name, point) for name, point in _MASTER),
    *((_sync_case, "sync", point) for point in _SYNC),
    *((_shed_case, "shed", point) for point in _SHED),
    *((_mend_case, "mend", point) for point in _MEND),
    *((_log_case, "log", point) for point in _LOG),
    *((_lease_case, "lease", point) for point in _LEASE),
    *((_learned_case, "learned", point) for point in _LEARNED),
    *((_folder_case, "folder", point) for point in _FOLDERS),
]
"""What is done, and the point where it is killed."""


def struck(rng: random.Random, folder: Path, number: int) -> Verdict:
    """Run the case of this number in `CASES`."""
    case, name, point = CASES[number]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict = case(rng, folder, name, point)
    except SemistreamError:
        # After a kill there is no reason for any error.
        return Verdict(LOST, f"{name} {point} {traceback.format_exc(limit=-4)}")
    kind, _, more = verdict.kind.partition(": ")
    return Verdict(kind, f"{name} {point} {verdict.note} {more}", verdict.struck)


def _case(rng: random.Random, folder: Path) -> Verdict:
    return struck(rng, folder, rng.randrange(len(CASES)))


ATTACK: Final = Attack("kills at crash points", _case, per_child=20)
