"""The rows that a version has of some keys, read page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.keys import Codes
from semistream.relation.master_version import MasterVersion
from semistream.relation.stored_rows import key_columns, pages_of, row_codes
from semistream.relation.updates.change import Change, upsertion
from semistream.relation.updates.placement import Placement

__all__ = ["found_rows", "key_with_several_rows"]

Numbers = NDArray[np.int64]


def found_rows(
    master: MasterVersion, keys: Sequence[pa.Array], codes: Codes
) -> Iterator[tuple[pa.RecordBatch, Numbers, Numbers]]:
    """Each page with rows of the keys: the page, the rows, and for each row the number of its key.

    The keys are columns of the master's types, in the order of their codes, each key once. A page
    is valid until the next one is asked for.
    """
    nothing = pa.Table.from_batches([], master.stored_schema)
    wanted = Change(master.codec, list(keys), codes, nothing, np.empty(0, np.int64), 0, "")
    placement = Placement(master, wanted, everything=False)
    with master.reader() as reader:
        for plan in placement.plans:
            for _, page in pages_of(reader, plan.touched):
                rows, key = wanted.pairs(key_columns(master, page), row_codes(master, page))
                yield page, rows, key


def key_with_several_rows(master: MasterVersion, data: pa.Table) -> dict[str, Any] | None:
    """A key of the data of which this version has several rows; None if there is none."""
    keys = upsertion(data, master.codec, master.key, master.stored_schema, master.code_column)
    counts = np.zeros(len(keys.gone_codes), np.int64)
    for _, _, key in found_rows(master, keys.gone, keys.gone_codes):
        np.add.at(counts, key, 1)
    several = np.flatnonzero(counts > 1)
    if not len(several):
        return None
    first = int(several[0])
    return {name: column[first].as_py() for name, column in zip(master.key, keys.gone, strict=True)}
