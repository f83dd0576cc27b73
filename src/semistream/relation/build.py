"""Building a master table from Arrow data: order the rows, write the files, commit.

Sorting and gathering happen in memory, so the data must fit there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.arrow_arrays import to_arrow
from semistream.crash_points import reached
from semistream.errors import KeyColumnError, MasterExistsError, OptionError
from semistream.history import check_history, check_no_overlap
from semistream.keys import Codes, KeyCodec
from semistream.relation.columns import ArrowData, as_table, stored_table
from semistream.relation.locator import locator_rows, page_starts, write_locator
from semistream.relation.membership_filter import MembershipFilter, check_bits
from semistream.relation.page_file import WrittenPages, page_file_name, write_pages
from semistream.relation.shards import check_shards, shard_of
from semistream.relation.storage import PACKED, Storage, check_compression
from semistream.relation.sync_mark import unmarked
from semistream.relation.versions.draft import Draft
from semistream.relation.versions.manifest import (
    Manifest,
    StoredFile,
    encode_schema,
    newest_version,
    store,
)

__all__ = [
    "CODE_COLUMN",
    "LAYOUTS",
    "Recipe",
    "build",
    "check_columns",
    "distinct",
    "keyed_rows",
    "next_version",
    "row_order",
]

LAYOUTS: Final = ("key", "given")
"""Rows in the order of their codes, or in the data's own order with each key's rows together."""

CODE_COLUMN: Final = "__code"
"""The stored column that holds hashed codes."""

_MIN_PAGE, _MAX_PAGE = 4096, 1 << 30
_PAGE, _PACKED_PAGE = 65536, 32768
"""Bytes of a page, by default. Rows of packed ones are found one by one on a disk: with half the
bytes, a task that needs some of the pages is up to half as fast again, and one that needs all of
them an eighth slower."""


@dataclass(frozen=True)
class Recipe:
    """How a master table is to be built; checked when made."""

    key: tuple[str, ...]
    page_bytes: int
    layout: str
    filter_bits: int = 0
    shards: int = 1
    valid: tuple[str, str] | None = None
    """The columns from when to when a row is valid."""
    compression: str | None = None
    """The codec that pages are compressed with."""

    @classmethod
    def of(
        cls,
        key: str | Sequence[str],
        page_bytes: int | None,
        layout: str,
        filter_bits: int = 0,
        shards: int = 1,
        valid: tuple[str, str] | None = None,
        compression: str | None = None,
    ) -> Recipe:
        """The recipe for these options; `OptionError` or `KeyColumnError` if one is bad."""
        names = (key,) if isinstance(key, str) else tuple(key or ())
        if not names or len(set(names)) != len(names):
            raise KeyColumnError(f"key={key!r} must name one or more different columns.")
        if layout not in LAYOUTS:
            raise OptionError(f"layout={layout!r} is not known. Use one of {', '.join(LAYOUTS)}.")
        if page_bytes is None:
            page_bytes = _PACKED_PAGE if compression == PACKED else _PAGE
        if type(page_bytes) is not int or not _MIN_PAGE <= page_bytes <= _MAX_PAGE:
            raise OptionError(
                f"page_bytes={page_bytes!r} must be an int from {_MIN_PAGE} to {_MAX_PAGE}. "
                "65536 suits most disks."
            )
        check_bits(filter_bits)
        check_shards(shards)
        check_compression(compression)
        return cls(names, page_bytes, layout, filter_bits, shards, valid, compression)


@dataclass(frozen=True)
class _Rows:
    """The rows to write and the order to write them in."""

    table: pa.Table
    codes: Codes
    order: NDArray[np.int64] | None
    cuts: NDArray[np.int64]
    """For each shard, the number of the row after its last one, in that order."""
    rows_without_key: int
    code_column: str | None

    @property
    def ordered_codes(self) -> Codes:
        """The codes in the order of writing."""
        return self.codes if self.order is None else self.codes[self.order]


def build(data: ArrowData, storage: Storage, recipe: Recipe, replacing: bool) -> int:
    """Write the next version and commit it. Returns its number."""
    version = next_version(storage, replacing)
    rows = _prepare(data, recipe)
    with Draft(storage, version) as draft:
        name = draft.file(page_file_name(recipe.compression))
        written = write_pages(
            storage,
            f"data/{name}",
            rows.table,
            rows.codes,
            recipe.page_bytes,
            rows.order,
            rows.cuts[:-1].tolist(),
            recipe.compression,
        )
        reached("build.pages")
        fields = _locator(draft, rows, recipe, written)
        files = fields.pop("files")
        files["index"] = store(storage, draft.file("index.arrow"), written.index.to_bytes())
        reached("build.index")
        if recipe.filter_bits:
            files["filter"] = _write_filter(draft, rows.ordered_codes, recipe.filter_bits)
            reached("build.filter")
        stored = StoredFile(name, written.bytes)
        draft.commit(_manifest(version, rows, recipe, written, stored, files, fields))
    return version


def next_version(storage: Storage, replace: bool) -> int:
    """The number of the version that a build makes; raises if it would replace one unasked."""
    if storage.is_file():
        raise OptionError(
            f"{storage.path} is a file. Give the path of a directory for the master table."
        )
    newest = newest_version(storage)
    if newest and not replace:
        raise MasterExistsError(
            f"{storage.path} already holds a master table (version {newest}). Pass replace=True "
            "to write its next version, or choose another path."
        )
    return newest + 1


def check_columns(names: Sequence[str], key: Sequence[str]) -> None:
    """Raise unless data with these columns can be stored under this key."""
    missing = [name for name in key if name not in names]
    if missing:
        raise KeyColumnError(
            f"The data has no key column {', '.join(missing)}; its columns are "
            f"{', '.join(names)}. Pass key= with one or more of these."
        )
    if CODE_COLUMN in names:
        raise OptionError(f"The name {CODE_COLUMN} is kept for semistream. Rename that column.")


def _prepare(data: ArrowData, recipe: Recipe) -> _Rows:
    table = as_table(data)
    check_columns(table.column_names, recipe.key)
    table = stored_table(table)
    table = table.cast(unmarked(table.schema))
    recipe = replace(recipe, valid=check_history(table.schema, recipe.key, recipe.valid))
    codec = KeyCodec([table.schema.field(name) for name in recipe.key])
    table, codes, without_key = keyed_rows(table, codec, recipe.key)
    if not codec.exact:
        field = pa.field(CODE_COLUMN, pa.int64(), nullable=False)
        table = table.append_column(field, to_arrow(codes))
    if recipe.valid is not None:
        check_no_overlap(table, recipe.key, recipe.valid)
    order = row_order(codes, recipe.layout, recipe.shards)
    counts = np.bincount(shard_of(codes, recipe.shards), minlength=recipe.shards)
    hidden = None if codec.exact else CODE_COLUMN
    return _Rows(table, codes, order, np.cumsum(counts), without_key, hidden)


def keyed_rows(table: pa.Table, codec: KeyCodec, key: Sequence[str]) -> tuple[pa.Table, Codes, int]:
    """The rows that have a key, their codes, and the number of rows without a key."""
    codes: list[Codes] = [np.empty(0, np.int64)]
    valid: list[NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    for batch in table.select(list(key)).to_batches():
        some, fine = codec.codes(batch.columns)
        codes.append(some)
        valid.append(np.ones(len(some), np.bool_) if fine is None else fine)
    keyed, found = np.concatenate(valid), np.concatenate(codes)
    if keyed.all():
        return table, found, 0
    return table.filter(to_arrow(keyed)), found[keyed], int(len(keyed) - keyed.sum())


def row_order(codes: Codes, layout: str, shards: int) -> NDArray[np.int64] | None:
    """The order of the rows on disk, or None if they are in that order already."""
    rank = codes
    if layout == "given":
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        rank = first[inverse]
    if shards > 1:
        return np.lexsort((rank, shard_of(codes, shards)))
    if len(rank) < 2 or bool((rank[1:] >= rank[:-1]).all()):
        return None
    return np.argsort(rank, kind="stable")


def distinct(codes: Codes) -> Codes:
    """Each code once. Equal codes must be adjacent."""
    return codes[np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])] if len(codes) else codes


def _locator(draft: Draft, rows: _Rows, recipe: Recipe, written: WrittenPages) -> dict[str, Any]:
    """Write the locator, if the layout needs one. Returns the manifest's fields for it."""
    if recipe.layout != "given":
        return {"files": {}}
    name = draft.file("locator.arrow")
    found = locator_rows(rows.ordered_codes, written.index)
    pages, starts = write_locator(draft.storage, f"data/{name}", found, recipe.shards)
    reached("locator.pages")
    index = store(draft.storage, draft.file("locator-index.arrow"), pages.index.to_bytes())
    return {
        "files": {"locator_index": index},
        "locator_files": (StoredFile(name, pages.bytes),),
        "locator_starts": starts,
    }


def _write_filter(draft: Draft, codes: Codes, bits: int) -> StoredFile:
    """Write the filter over these codes. Equal codes must be adjacent."""
    some = distinct(codes)
    members = MembershipFilter.sized(len(some), bits)
    members.add(some)
    return store(draft.storage, draft.file("filter"), members.data)


def _manifest(
    version: int,
    rows: _Rows,
    recipe: Recipe,
    written: WrittenPages,
    stored: StoredFile,
    files: dict[str, StoredFile],
    fields: dict[str, Any],
) -> Manifest:
    return Manifest(
        version=version,
        key=recipe.key,
        layout=recipe.layout,
        row_count=written.index.row_count,
        page_count=len(written.index),
        rows_without_key=rows.rows_without_key,
        page_bytes=recipe.page_bytes,
        widest_row=written.widest_row,
        schema=encode_schema(rows.table.schema),
        code_column=rows.code_column,
        files=files,
        page_files=(stored,),
        valid=recipe.valid,
        compression=recipe.compression,
        shard_starts=page_starts(written.index, rows.cuts),
        **fields,
    )
