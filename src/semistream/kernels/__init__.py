"""The Numba loops under the parts: int64 codes and row numbers in, slots and row numbers out.

What runs once per tuple runs here, in NumPy or in Arrow; only the kernels for hashing keys
(`key_hash`), for the membership filter (`relation`) and for simulation (`cost`) stand with what
they belong to. Kernels are compiled on first use, cached on disk and run without the GIL. They
write to arrays that they are handed, so that the memory of a part is what its grant says; their
own scratch is at most a few hundred bytes. A kernel that fills its output array returns early
and can be called again to go on.
"""

from semistream.kernels.chains import (
    NODE,
    NONE,
    Chains,
    bucket_of,
    codes_to_pass,
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
    spread_buckets,
)
from semistream.kernels.compiling import kernel
from semistream.kernels.front import (
    CANDIDATE,
    count_codes,
    estimate_codes,
    frequent_codes,
    frequent_rows,
    probe_front,
)
from semistream.kernels.lookup import match_codes
from semistream.kernels.queue import (
    BEYOND,
    COUNT,
    FINGER,
    FREE,
    FREE_COUNT,
    FRESH,
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
from semistream.kernels.waiting import codes_in_regions, pair_codes, regions_from

__all__ = [
    "BEYOND",
    "BINS_PER_OCTAVE",
    "CANDIDATE",
    "COUNT",
    "FINGER",
    "FREE",
    "FREE_COUNT",
    "FRESH",
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
    "codes_in_regions",
    "codes_to_pass",
    "count_codes",
    "estimate_codes",
    "find_codes",
    "finish",
    "frequent_codes",
    "frequent_rows",
    "gather_codes",
    "insert",
    "kernel",
    "mark_matched",
    "match_codes",
    "oldest_outside",
    "oldest_slots",
    "pair_codes",
    "place_finger",
    "probe",
    "probe_front",
    "probe_region",
    "region_of",
    "regions_from",
    "remove_codes",
    "remove_oldest_of_code",
    "remove_ranges",
    "set_limit",
    "spread_buckets",
    "unlink",
]
