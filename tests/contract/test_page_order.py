"""Which pages are read, and in which order: tiny joins worked out by hand from the papers.

Every master here has two rows per page, so that a page is written p0 = {10, 20} below. The
order is what the paper's pseudo-code gives for the stream; the comments follow it line by line.
A page that is read ahead must be one that is read next anyway, so reading ahead changes nothing
in these lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream as ss
from semistream.testing import ManualClock, PageReads, assert_same_rows, checked_run, oracle_join

HALF_A_PAGE = "r" * 1600
EIGHT = [10, 20, 30, 40, 50, 60, 70, 80]
"""In key order: p0 = {10, 20}, p1 = {30, 40}, p2 = {50, 60}, p3 = {70, 80}."""
BY_FREQUENCY = [60, 20, 10, 80, 30, 50, 40, 70]
"""As given: p0 = {60, 20}, p1 = {10, 80}, p2 = {30, 50}, p3 = {40, 70}."""


def pages_read(
    folder: Path,
    algorithm: str,
    master_keys: Sequence[int],
    batches: Sequence[Sequence[int]],
    layout: str = "key",
    **options: Any,
) -> list[tuple[int, ...]]:
    """Run the join, see that its rows are right, and give the partitions in reading order."""
    count = len(master_keys)
    table = pa.table({"id": master_keys, "n": range(count), "r": [HALF_A_PAGE] * count})
    master = ss.MasterTable.from_arrow(
        table, folder / "r", key="id", page_bytes=4096, layout=layout
    )
    assert master.pages.rows.tolist() == [2] * (count // 2)
    stream = [pa.record_batch({"id": pa.array(keys, pa.int64())}) for keys in batches]
    if options:
        options = {"partition_pages": 1} | options
    if algorithm in ("hybridjoin", "chybridjoin", "demandjoin"):
        # One look-up at a time, as the paper has it.
        options = {"look_ups": 0} | options
    engine = ss.engine(
        master,
        algorithm=algorithm,
        io="unmapped",
        on="id",
        how="left",
        memory="1MB",
        clock=ManualClock(),
        **options,
    )
    with PageReads() as reads:
        found = checked_run(engine, stream)
    assert_same_rows(found, oracle_join(stream, table, on="id", how="left").rows)
    assert engine.metrics().pages_read == len(reads.pages)
    assert engine.metrics().partitions_read == len(reads.partitions)
    return reads.partitions


def each(*pages: int) -> list[tuple[int, ...]]:
    """Partitions of one page."""
    return [(page,) for page in pages]


def test_meshjoin_figure_2(tmp_path: Path) -> None:
    """Polyzotis et al. 2007, Figure 2: two pages, a window of the two most recent tuples.

    t = 0: s1 and p0 are read and joined.
    t = 1: s2 and p1 are read; p1 meets s1 and s2; s1 has met all of R.
    t = 2: p0 again; s3 takes the place of s1; p0 meets s2 and s3; s2 has met all of R.
    t = 3: the stream has ended; p1 meets s3, which has now met all of R. Nothing waits: the end.
    """
    order = pages_read(
        tmp_path, "meshjoin", EIGHT[:4], [[10, 40, 30]], chunk_tuples=1, stream_slots=2
    )
    assert order == each(0, 1, 0, 1)


@pytest.mark.parametrize("stream", [[[10, 20, 30, 40, 99]], [[10], [20, 30], [40, 99]]], ids=str)
def test_meshjoin_with_a_last_partition_that_is_smaller(
    tmp_path: Path, stream: list[list[int]]
) -> None:
    """R has three pages and b = 2, so a cycle is two reads; w = 2; five tuples arrive.

    position 0: (s1 s2) enter, partition (p0 p1).
    position 1: (s3 s4) enter, partition (p2).
    position 2: (s1 s2) have had their cycle and leave; s5 enters; (p0 p1).
    position 3: (s3 s4) leave; nothing arrives any more; (p2) for s5.
    position 4: s5 leaves; nothing waits.
    However the tuples are cut into batches: w of them are read when w have arrived.
    """
    order = pages_read(
        tmp_path, "meshjoin", EIGHT[:6], stream, partition_pages=2, chunk_tuples=2, stream_slots=4
    )
    assert order == [(0, 1), (2,), (0, 1), (2,)]


def test_meshjoin_goes_round_from_wherever_a_tuple_came_in(tmp_path: Path) -> None:
    """Three pages, w = 1, two tuples: s2 enters one position later and leaves one later.

    position 0: s1, p0.   position 1: s2, p1.   position 2: p2.
    position 3: s1 leaves; the scan wraps: p0, the page that s2 has not met.
    position 4: s2 leaves.
    """
    order = pages_read(tmp_path, "meshjoin", EIGHT[:6], [[10, 20]], chunk_tuples=1, stream_slots=3)
    assert order == each(0, 1, 2, 0)


def test_meshjoin_stands_still_while_nothing_waits(tmp_path: Path) -> None:
    """The stream pauses after s1: it meets all three pages, then nothing is read.

    When s2 comes the scan goes on where it stopped, which is at p0 again.
    """
    order = pages_read(
        tmp_path, "meshjoin", EIGHT[:6], [[10], [], [], [60]], chunk_tuples=1, stream_slots=3
    )
    assert order == each(0, 1, 2, 0, 1, 2)


def test_rmeshjoin_shares_its_window_among_the_partitions(tmp_path: Path) -> None:
    """Two partitions and three slots, which MESHJOIN could not divide; six tuples arrive.

    Of three slots, 3·1//2 − 0 = 1 belongs to the first partition, 3 − 1 = 2 to the second.
    position 0: s1 enters, p0.            position 1: s2 s3 enter, p1.
    position 2: s1 leaves, s4 enters, p0. position 3: s2 s3 leave, s5 s6 enter, p1.
    position 4: s4 leaves; p0 for s5 s6.  position 5: s5 s6 leave: the end.
    """
    order = pages_read(tmp_path, "rmeshjoin", EIGHT[:4], [[10, 20, 30, 40, 10, 99]], stream_slots=3)
    assert order == each(0, 1, 0, 1, 0)


def test_hybridjoin(tmp_path: Path) -> None:
    """Naeem et al. 2011, Figure 5, with h_S = 3 and the stream 60 10 50 30 20 60 99 70.

    w = 3: 60 10 50 are read (line 4). Oldest: 60 → p2, which matches 60 and 50. Q: 10.
    w = 2: 30 20 are read. Q: 10 30 20. Oldest: 10 → p0, which matches 10 and 20. Q: 30.
    w = 2: 60 99 are read. Q: 30 60 99. Oldest: 30 → p1, which matches 30. Q: 60 99.
    w = 1: 70 is read. Q: 60 99 70. Oldest: 60 → p2, which matches 60. Q: 99 70.
    The stream has ended. Oldest: 99. No page ends at or behind 99: the index knows that it is
    absent, so it leaves unmatched and no page is read for it. Q: 70.
    Oldest: 70 → p3.
    """
    stream = [[60, 10, 50, 30, 20, 60, 99, 70]]
    order = pages_read(tmp_path, "hybridjoin", EIGHT, stream, stream_slots=3)
    assert order == each(2, 0, 1, 2, 3)


def test_hybridjoin_settles_absent_keys_in_the_range_of_a_page(tmp_path: Path) -> None:
    """In key order one loaded page settles every waiting tuple in its key range.

    All six tuples have room. Oldest: 55 → p2 = {50, 60}, the only page that could hold it; it
    settles 55 and 52 and 51, none of which exists, and 60. Q: 45 12.
    Oldest: 45, between the last key of p1 and the first of p2: no page is read. Q: 12.
    Oldest: 12 → p0.
    """
    stream = [[55, 52, 45, 51, 60, 12]]
    order = pages_read(tmp_path, "hybridjoin", EIGHT, stream, stream_slots=10)
    assert order == each(2, 0)


def test_hybridjoin_reads_a_key_to_its_end(tmp_path: Path) -> None:
    """30 has five rows on p1 p2 p3; R is p0 = {10, 20}, p1 = {30, 30}, …, p3 = {30, 40}.

    Oldest: 30 → p1 p2 p3, one after the other. p3 also settles 40. Q: 20.
    Oldest: 20 → p0.
    """
    keys = [10, 20, 30, 30, 30, 30, 30, 40]
    order = pages_read(tmp_path, "hybridjoin", keys, [[30, 40, 20]], stream_slots=10)
    assert order == each(1, 2, 3, 0)


def test_hybridjoin_with_several_look_ups_at_a_time(tmp_path: Path) -> None:
    """The order is that of single look-ups; here two of them are done at a time.

    All eight tuples have room. Oldest: 60 → p2 and, not of that page, 10 → p0; both are read.
    They settle 60 10 50 20 60. Q: 30 99 70. Oldest: 30 → p1 and 99, behind the last key: p3 is
    the page whose range has no end. They settle all.
    """
    stream = [[60, 10, 50, 30, 20, 60, 99, 70]]
    order = pages_read(tmp_path, "hybridjoin", EIGHT, stream, partition_pages=1, look_ups=2)
    assert order == each(2, 0, 1, 3)


def test_several_look_ups_read_a_key_to_its_end(tmp_path: Path) -> None:
    """30 crosses from p1 to p3, so p3, where it is looked for first, does not settle it.

    Nobody else waits for p3, so only p0 is read, for 20 and 10. Then 30 is looked up by itself:
    p1 p2 p3 one after the other.
    """
    keys = [10, 20, 30, 30, 30, 30, 30, 40]
    order = pages_read(tmp_path, "hybridjoin", keys, [[20, 30, 10]], partition_pages=1, look_ups=2)
    assert order == each(0, 1, 2, 3)


def test_hybridjoin_in_a_given_layout(tmp_path: Path) -> None:
    """The dense index says where a key is; h_S = 2, the stream is 70 10 80 25 60.

    w = 2: 70 10. Oldest: 70 → p3. Q: 10.
    w = 1: 80. Oldest: 10 → p1 = {10, 80}, which matches both. Q: empty.
    w = 2: 25 60. Oldest: 25, which is absent and known to be: nothing is read. Q: 60.
    Oldest: 60 → p0.
    """
    stream = [[70, 10, 80, 25, 60]]
    order = pages_read(tmp_path, "hybridjoin", BY_FREQUENCY, stream, "given", stream_slots=2)
    assert order == each(3, 1, 0)


def test_xhybridjoin(tmp_path: Path) -> None:
    """Naeem et al. 2013, Algorithm 1, h_S = 3; p0 = {60, 20} is the non-swappable part.

    Line 1: p0 is loaded.
    w = 3: 10 60 30. p0 matches 60 (lines 8-14). Oldest: 10 → p1 = {10, 80}. Q: 30.
    w = 2: 20 80. Q: 30 20 80. p0 matches 20. Oldest: 30 → p2 = {30, 50}. Q: 80.
    w = 2: 50 60. Q: 80 50 60. p0 matches 60. Oldest: 80 → p1. Q: 50.
    w = 2: 40, all that has arrived. p0 matches nothing. Oldest: 50 → p2. Q: 40.
    The stream has ended. Oldest: 40 → p3.
    """
    stream = [[10, 60, 30, 20, 80, 50, 60, 40]]
    order = pages_read(
        tmp_path, "xhybridjoin", BY_FREQUENCY, stream, "given", stream_slots=3, pinned_partitions=1
    )
    assert order == each(0, 1, 2, 1, 2, 3)


def test_oxhybridjoin(tmp_path: Path) -> None:
    """Naeem et al. 2012, Algorithm 1, h_S = 2; H_R holds p0 = {60, 20}, loaded first.

    Stream-probing (3-11): 10 waits, 60 hits, 30 waits: H_S is full.
    Disk-probing (12-21): oldest 10 → p1. Q: 30.
    20 hits, 80 waits: full. Oldest: 30 → p2. Q: 80.
    50 waits: full. Oldest: 80 → p1. Q: 50.
    60 hits, 40 waits: full. Oldest: 50 → p2. Q: 40.
    The stream has ended. Oldest: 40 → p3.
    """
    stream = [[10, 60, 30, 20, 80, 50, 60, 40]]
    order = pages_read(
        tmp_path, "oxhybridjoin", BY_FREQUENCY, stream, "given", stream_slots=2, pinned_partitions=1
    )
    assert order == each(0, 1, 2, 1, 2, 3)


def test_oxhybridjoin_lets_hits_pass_a_full_table_no_further(tmp_path: Path) -> None:
    """Line 3: the stream is read only while H_S has a free slot, also when the next would hit.

    h_S = 1: 30 waits: full. Oldest: 30 → p2. Then 60 and 20 hit, 40 waits: full → p3.
    """
    order = pages_read(
        tmp_path,
        "oxhybridjoin",
        BY_FREQUENCY,
        [[30, 60, 20, 40]],
        "given",
        stream_slots=1,
        pinned_partitions=1,
    )
    assert order == each(0, 2, 3)


def test_inlj(tmp_path: Path) -> None:
    """One look-up per stream tuple, in the stream's order.

    60 → p2; 50 is on the page just read; 10 → p0; 45 lies between pages, 99 behind all: no page;
    20 is on the page just read; 60 → p2 once more: nothing but the last page is kept.
    """
    stream = [[60, 50, 10], [45, 99, 20, 60]]
    order = pages_read(tmp_path, "inlj", EIGHT, stream)
    assert order == each(2, 0, 2)


def test_inlj_reads_all_pages_of_a_key(tmp_path: Path) -> None:
    """30 is on p1 p2 p3; the second 30 needs them again, beginning with p1."""
    keys = [10, 20, 30, 30, 30, 30, 30, 40]
    stream = [[30, 10, 30]]
    order = pages_read(tmp_path, "inlj", keys, stream)
    assert order == each(1, 2, 3, 0, 1, 2, 3)


@pytest.mark.parametrize(
    ("behind", "options"),
    [
        ("meshjoin", {"chunk_tuples": 1, "stream_slots": 4}),
        ("hybridjoin", {"stream_slots": 3}),
        ("inlj", {}),
    ],
)
def test_an_empty_front_stage_changes_no_read(
    tmp_path: Path, behind: str, options: dict[str, Any]
) -> None:
    """Naeem et al. 2017, §3: the front stage answers keys that were frequent in the disk phase.

    In a stream without repetition no key is, so every tuple goes on to the algorithm behind.
    """
    stream = [[60, 10, 50, 30, 20, 70, 99, 80, 40]]
    alone = pages_read(tmp_path / "alone", behind, EIGHT, stream, **options)
    assert pages_read(tmp_path / "front", f"c{behind}", EIGHT, stream, **options) == alone


def test_demandjoin_reads_for_how_many_wait_times_how_long(tmp_path: Path) -> None:
    """Four slots and the stream 60 10 50 30 20 60 99 70. Ages are in tuples that have entered.

    60 10 50 30 enter. p2: two wait, the first for 4, so 2·4; p0: 1·3; p1: 1·1. Read p2.
    20 60 enter.       p0: 2·5, p1: 1·3, p2: 1·1. Read p0, where HYBRIDJOIN would too.
    99 70 enter.       p1: 1·5, p2: 1·3, nowhere (99): 1·2, p3: 1·1. Read p1.
    Nothing comes.     p2: 3, nowhere: 2, p3: 1. Read p2; 99 leaves without a read; read p3.
    """
    order = pages_read(
        tmp_path,
        "demandjoin",
        EIGHT,
        [[60, 10, 50, 30, 20, 60, 99, 70]],
        stream_slots=4,
        threshold=100,
    )
    assert order == each(2, 0, 1, 2, 3)


def test_demandjoin_lets_a_lonely_tuple_wait_for_company(tmp_path: Path) -> None:
    """Three slots; 10 comes first, and HYBRIDJOIN would read its page first.

    10 70 80 enter. p3: 2·2, p0: 1·3. Read p3.
    20 30 enter.    p0: 2·5, p1: 1·1. Read p0, for 10 and 20 together. Then p1.
    """
    stream = [[10, 70, 80, 20, 30]]
    order = pages_read(tmp_path, "demandjoin", EIGHT, stream, stream_slots=3, threshold=100)
    assert order == each(3, 0, 1)
