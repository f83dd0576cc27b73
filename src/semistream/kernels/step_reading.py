"""Reading the partition of a step, and checking it."""

from __future__ import annotations

from semistream.kernels.chains import NONE
from semistream.kernels.compiling import kernel
from semistream.kernels.pages import is_sound, open_page
from semistream.kernels.reading import announce_pages, intact, read_pages
from semistream.kernels.step_state import (
    BYTES,
    IN_FRAME,
    PAGES,
    PARTITION,
    READ_UNTIL,
    READS,
    SEQUENTIAL,
    UNSOUND,
    Relation,
    Step,
    page_range,
)


@kernel
def announce(relation: Relation, partition: int) -> None:
    """Let the operating system begin to read a partition into its cache."""
    begin, stop = page_range(relation, partition)
    descriptor = relation.descriptors[relation.file[begin]]
    announce_pages(descriptor, begin, stop, relation.pages)


@kernel
def read_partition(relation: Relation, step: Step) -> bool:
    """Have the partition under way in memory; False if only the caller can read it."""
    state, counts, partition = step.state, step.counts, step.state[PARTITION]
    if partition < len(relation.pinned):
        return True
    begin, stop = page_range(relation, partition)
    position = relation.pages.offset[begin] & -relation.grain
    if state[IN_FRAME] == partition:
        if not intact(begin, stop, relation.frame - position, relation.pages):
            return False
        state[IN_FRAME] = NONE
    else:
        descriptor = relation.descriptors[relation.file[begin]]
        read = read_pages(descriptor, begin, stop, relation.frame, relation.grain, relation.pages)
        if read < 0:
            return False
        counts[BYTES] += read
    for page in range(begin, stop):
        at = relation.frame + relation.pages.offset[page] - position
        if not is_sound(
            at, page, relation.pages, relation.widths, relation.code, relation.in_order
        ):
            state[UNSOUND] = page
            return False
        open_page(at, relation.widths, relation.fields[page - begin])
    step.read[counts[READS]] = partition
    counts[READS] += 1
    counts[SEQUENTIAL] += begin == state[READ_UNTIL]
    state[READ_UNTIL] = stop
    counts[PAGES] += stop - begin
    return True
