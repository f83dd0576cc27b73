"""The Numba loops under the parts: int64 codes and row numbers in, slots and row numbers out.

Only here does anything run once per tuple. Kernels are compiled on first use, cached on disk
and run without the GIL; they allocate nothing, so that the memory of a part is what its grant
says. A kernel that fills its output array returns early and can be called again to go on.
"""

from semistream.kernels.chains import (
    NODE,
    NONE,
    Chains,
    bucket_of,
    find_codes,
    gather_codes,
    insert,
    mark_matched,
    probe,
    probe_region,
    region_of,
    remove_codes,
    remove_oldest_of_code,
    remove_ranges,
)
from semistream.kernels.compiling import kernel
from semistream.kernels.front import (
    CANDIDATE,
    count_codes,
    estimate_codes,
    frequent_codes,
    probe_front,
)
from semistream.kernels.lookup import match_codes
from semistream.kernels.queue import (
    BEYOND,
    COUNT,
    FINGER,
    FREE,
    FREE_COUNT,
    LIMIT,
    LINK,
    NEWEST,
    OLDEST,
    Links,
    add_free,
    append,
    oldest_outside,
    oldest_slots,
    place_finger,
    set_limit,
    unlink,
)
from semistream.kernels.times import BINS_PER_OCTAVE, HISTOGRAM_BINS, bin_of, finish

__all__ = [
    "BEYOND",
    "BINS_PER_OCTAVE",
    "CANDIDATE",
    "COUNT",
    "FINGER",
    "FREE",
    "FREE_COUNT",
    "HISTOGRAM_BINS",
    "LIMIT",
    "LINK",
    "NEWEST",
    "NODE",
    "NONE",
    "OLDEST",
    "Chains",
    "Links",
    "add_free",
    "append",
    "bin_of",
    "bucket_of",
    "count_codes",
    "estimate_codes",
    "find_codes",
    "finish",
    "frequent_codes",
    "gather_codes",
    "insert",
    "kernel",
    "mark_matched",
    "match_codes",
    "oldest_outside",
    "oldest_slots",
    "place_finger",
    "probe",
    "probe_front",
    "probe_region",
    "region_of",
    "remove_codes",
    "remove_oldest_of_code",
    "remove_ranges",
    "set_limit",
    "unlink",
]
