"""Key tables: source key → surrogate, each number given once.

    row      (source, source key …) → surrogate
    mark     which column has the surrogates, and the next number (see `surrogates`)

A key table is a master table. New keys are committed as its next version, together with the next
number. The commit of version n + 1 succeeds for one writer only: every other one finds that it was
late, looks its keys up in n + 1, and numbers only those that are still unknown. So a key has one
surrogate, and a surrogate one key, whoever asks, how often, and wherever a process dies.

The table is the one in Figure 1 of Polyzotis et al., "Supporting Streaming Updates in an Active
Data Warehouse", ICDE 2007.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow, to_numpy
from semistream.errors import (
    KeyColumnError,
    KeyTypeError,
    MasterExistsError,
    OptionError,
)
from semistream.relation.master_table import MasterTable
from semistream.relation.storage import Location, storage_at
from semistream.relation.stored_rows import RUN_PAGES
from semistream.relation.surrogates import LAST, Surrogates, marked, surrogates_of
from semistream.relation.tidy import tidy
from semistream.relation.updates.change import upsertion
from semistream.relation.updates.finding import found_rows
from semistream.relation.updates.update import is_scattered, update
from semistream.relation.wanted_keys import Numbers, WantedKeys
from semistream.turns import turn

__all__ = [
    "assigned",
    "key_schema",
    "key_table",
    "numbering_bytes",
    "numbering_growth",
    "surrogates_in",
]

_PAGE_BYTES: Final = 16384
"""New keys fall into pages all over the table, and each rewrites its page: small ones cost less."""
_MOST_ATTEMPTS, _MOST_IN_VAIN = 1000, 20
"""How often a writer tries to commit: in all, and without any other having been first."""
_LONGEST_PAUSE: Final = 2.0
_LONGEST_TURN: Final = 10.0
"""How long a process waits for another one of this machine that is committing, in seconds."""
_TIDY_EVERY: Final = 64
"""Every so many versions, old ones are removed."""
_OPERATION: Final = "assign"
_ROW_BYTES, _KEY_COPIES = 200, 8
"""What numbering holds for each row: codes and places, and copies of the key; as measured."""
_SPARE_PAGES, _INDEX_BYTES, _SINK_BYTES = 8, 128, 1 << 17
"""What it holds besides a run of pages: pages at work, the index by page, the file's buffer."""


def key_table(
    path: Location,
    *,
    key: Mapping[str, pa.DataType | str],
    surrogate: str,
    first: int = 1,
    page_bytes: int = _PAGE_BYTES,
) -> MasterTable:
    """Open the key table at a path; if there is none, make one without keys.

    Args:
        path: the folder: a local path, or a URI that pyarrow opens.
        key: the columns of the source key and their Arrow types, as `pyarrow.int64()` or
            "int64". With several sources, one of the columns says which: {"source": "string",
            "product": "string"}.
        surrogate: the column with the surrogates, whole numbers of 64 bits.
        first: the first number to give.
        page_bytes: the most bytes of a page. New keys rewrite the pages that they go to.
    """
    schema = key_schema(key, surrogate, first)
    # Of two that make it at the same time, one finds that of the other.
    with contextlib.suppress(MasterExistsError):
        return MasterTable.from_arrow(
            pa.Table.from_batches([], schema), path, key=list(key), page_bytes=page_bytes
        )
    table = MasterTable.open(path)
    surrogates_in(table)
    if table.key != tuple(key) or not table.schema.equals(schema):
        raise OptionError(
            f"{table.path} is a key table with key {list(table.key)} and the columns "
            f"{_shown(table.schema)}, not {_shown(schema)}. Open it as it is, or make another."
        )
    return table


def surrogates_in(table: MasterTable) -> Surrogates:
    """Which column of a key table has the surrogates; `OptionError` if it is not a key table."""
    found = surrogates_of(table.stored_schema)
    if found is None:
        raise OptionError(
            f"{table.path} is not a key table: nothing says which number is the next. Make one "
            "with ss.key_table(path, key={…}, surrogate=…)."
        )
    if set(table.schema.names) != {*table.key, found.column}:
        raise OptionError(
            f"The key table {table.path} has the columns {_shown(table.schema)}. It may have only "
            f"the key {list(table.key)} and the surrogate {found.column!r}: new keys come without "
            "anything else."
        )
    return found


def assigned(
    path: Location, keys: Sequence[pa.Array], names: Sequence[str], keep: float | None = None
) -> Numbers:
    """The surrogate of each key; a key that has none gets one, committed before this returns.

    `keys` are the columns of the key in the table's order, without nulls; `names` is what
    messages call them. Versions that were made here are removed when they are older than `keep`
    seconds; None keeps all. `MasterExistsError` if no other writer is making progress either.
    """
    newest, in_vain = 0, 0
    for attempt in range(_MOST_ATTEMPTS):
        with turn(os.fspath(path), _LONGEST_TURN):
            table = MasterTable.open(path)
            in_vain = in_vain + 1 if table.version == newest else 0
            newest = table.version
            wanted = WantedKeys.of(table.codec, keys, names)
            numbers, is_known = _look_up(wanted, table)
            if is_known.all():
                return numbers[wanted.key_of]
            unknown = wanted.by_arrival(np.flatnonzero(~is_known))
            begin = surrogates_in(table).next
            if begin + len(unknown) > LAST:
                raise OptionError(
                    f"{table.path} has no numbers left: the next one is {begin:,}, and "
                    f"{len(unknown):,} keys are new. A surrogate is below {LAST:,}."
                )
            numbers[unknown] = np.arange(begin, begin + len(unknown))
            try:
                version = _commit(table, wanted, unknown, numbers[unknown], may_pack=not attempt)
            except MasterExistsError:
                if in_vain >= _MOST_IN_VAIN:
                    raise
            else:
                if keep is not None and version % _TIDY_EVERY == 0:
                    tidy(table, _OPERATION, keep)
                return numbers[wanted.key_of]
        time.sleep(random.uniform(0.0, min(0.005 * 2.0 ** min(attempt, 20), _LONGEST_PAUSE)))
    raise MasterExistsError(
        f"{_MOST_ATTEMPTS} times, another writer was first to commit new keys to "
        f"{storage_at(path).path}. Let fewer "
        "tasks assign keys at the same time."
    )


def numbering_bytes(table: MasterTable) -> int:
    """The most bytes that `assigned` holds, whatever the rows."""
    # Long keys make pages that are larger than most.
    read = table.pages.frame_bytes(RUN_PAGES)
    pages = _SPARE_PAGES * table.page_bytes + max(read, RUN_PAGES * table.page_bytes)
    return _SINK_BYTES + pages + _INDEX_BYTES * table.page_count


def numbering_growth(rows: int, key_bytes: int) -> int:
    """The bytes that it holds besides, for so many rows whose keys take so many bytes."""
    return _ROW_BYTES * rows + _KEY_COPIES * key_bytes


def _look_up(wanted: WantedKeys, table: MasterTable) -> tuple[Numbers, NDArray[np.bool_]]:
    """The surrogate of each key, and whether the table has it."""
    numbers = np.zeros(len(wanted.codes), np.int64)
    is_known = np.zeros(len(wanted.codes), np.bool_)
    column = surrogates_in(table).column
    for page, rows, key in found_rows(table, wanted.columns, wanted.codes):
        numbers[key] = to_numpy(page.column(column))[rows]
        is_known[key] = True
    return numbers, is_known


def _commit(
    table: MasterTable, wanted: WantedKeys, rows: Numbers, numbers: Numbers, may_pack: bool
) -> int:
    """Commit new keys and their numbers as the version after the table's."""
    chosen = to_arrow(rows)
    columns = dict(zip(table.key, (c.take(chosen) for c in wanted.columns), strict=True))
    columns[surrogates_in(table).column] = to_arrow(numbers)
    change = upsertion(
        pa.table(columns), table.codec, table.key, table.stored_schema, table.code_column
    )
    count = "1 key" if len(rows) == 1 else f"{len(rows):,} keys"
    change = replace(change, operation=f"{_OPERATION} {count}")
    return update(table, change, everything=may_pack and is_scattered(table))


def key_schema(key: Mapping[str, pa.DataType | str], surrogate: str, first: int) -> pa.Schema:
    """The stored schema of a key table without keys; an error if there can be none."""
    given: object = key
    column: object = surrogate
    if not isinstance(given, Mapping) or not given:
        raise KeyColumnError(
            f"key={key!r} must be a dict from key column to its Arrow type, such as "
            '{"source": "string", "product": "int64"}.'
        )
    if not isinstance(column, str) or column in key:
        raise OptionError(f"surrogate={surrogate!r} must be the name of a column beside the key.")
    if type(first) is not int or not -(2**63) <= first < 2**63:
        raise OptionError(f"first={first!r} must be a whole number of 64 bits.")
    fields = [pa.field(name, _type(name, kind)) for name, kind in key.items()]
    fields.append(pa.field(surrogate, pa.int64(), nullable=False))
    return marked(pa.schema(fields), surrogate, first)


def _type(name: str, kind: pa.DataType | str) -> pa.DataType:
    try:
        return pa.type_for_alias(kind) if isinstance(kind, str) else pa.field(name, kind).type
    except (TypeError, ValueError) as error:
        raise KeyTypeError(
            f"Key column {name!r} has the type {kind!r}, which Arrow does not know. Give one of "
            'its types, such as pyarrow.int64(), or its name, such as "int64".'
        ) from error


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
