"""What waiting tuples are asked: which codes wait where, and which tuples a found row meets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semistream.kernels.chains import (
    BLOCK,
    MATCHED,
    NONE,
    Chains,
    ask_for_bucket,
    ask_for_codes,
    region_of,
)
from semistream.kernels.compiling import kernel
from semistream.kernels.queue import Links

Numbers = NDArray[np.int32]
Codes = NDArray[np.int64]


@kernel
def regions_from(
    links: Links,
    slot: int,
    nodes: Any,
    fences: Codes,
    marked: NDArray[np.uint8],
    out: Codes,
    most_steps: int,
) -> int:
    """The regions of the tuple in `slot` and of newer ones, each once; returns how many.

    Regions that are marked are passed over, and those written are marked. Looks at `most_steps`
    tuples at most.
    """
    found = 0
    for _ in range(most_steps):
        if slot == NONE or found == len(out):
            break
        region = region_of(fences, nodes[slot].code)
        if not marked[region]:
            marked[region] = 1
            out[found] = region
            found += 1
        slot = links.links[slot].newer
    return found


@kernel
def codes_in_regions(
    chains: Chains,
    regions: Codes,
    lows: Codes,
    highs: Codes,
    codes: Codes,
    ends: Codes,
) -> int:
    """Write the codes that wait in some regions and lie in low..high of their region.

    Those of region i end before `ends[i]`. Returns for how many regions `codes` had room; of
    the first one, as many codes are written as it has room for.
    """
    written = 0
    for i in range(len(regions)):
        begun, behind = written, chains.starts[regions[i] + 1]
        for bucket in range(chains.starts[regions[i]], behind):
            ask_for_bucket(chains, bucket, behind)
            slot = chains.heads[bucket]
            while slot != NONE:
                code = chains.nodes[slot].code
                if lows[i] <= code <= highs[i]:
                    if written == len(codes):
                        ends[i] = written
                        return i if begun else 1
                    codes[written] = code
                    written += 1
                slot = chains.nodes[slot].next_key
        ends[i] = written
    return len(regions)


@kernel
def pair_codes(
    chains: Chains,
    fences: Codes,
    codes: Codes,
    counts: Numbers,
    waits: Numbers,
    cursor: Codes,
    slots: Numbers,
    rows: Numbers,
    mark: bool,
) -> int:
    """Pair waiting tuples with rows that are numbered code by code, `counts[i]` of `codes[i]`.

    Writes to `waits` how many tuples wait for each code that has rows. `cursor` is (next code,
    its first row, its next row, next slot or NONE). Returns how many pairs were written; all are
    when cursor[0] is behind the last code.
    """
    written = 0
    at, first, row, slot = cursor[0], cursor[1], cursor[2], cursor[3]
    buckets, begun, ready = np.empty(BLOCK, np.int64), at, at
    while at < len(codes):
        code = codes[at]
        if at == ready:
            begun, ready = at, min(at + BLOCK, len(codes))
            ask_for_codes(chains, fences, codes[begun:ready], buckets)
        head = chains.heads[buckets[at - begun]]
        while head != NONE and chains.nodes[head].code != code:
            head = chains.nodes[head].next_key
        if slot == NONE:
            slot = head
            waits[at] = 0
        while row < first + counts[at] and slot != NONE:
            if written == len(slots):
                cursor[0], cursor[1], cursor[2], cursor[3] = at, first, row, slot
                return written
            if mark:
                chains.nodes[slot].stamp |= MATCHED
            slots[written], rows[written] = slot, row
            written += 1
            if row == first:
                waits[at] += 1
            slot = chains.nodes[slot].next_same
            if slot == NONE:
                row += 1
                slot = head if row < first + counts[at] else NONE
        first += counts[at]
        row = first
        slot = NONE
        at += 1
    cursor[0] = at
    return written
