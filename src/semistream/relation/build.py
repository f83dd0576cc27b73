"""Building a master table from Arrow data: order the rows, write the files, commit.

Sorting and gathering happen in memory, so the data must fit there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.errors import KeyColumnError, MasterExistsError, OptionError
from semistream.keys import Codes, KeyCodec
from semistream.relation import files
from semistream.relation.columns import ArrowData, as_table, stored_table
from semistream.relation.locator import write_locator
from semistream.relation.manifest import (
    Manifest,
    StoredFile,
    commit_manifest,
    encode_schema,
    newest_version,
)
from semistream.relation.membership_filter import MembershipFilter, check_bits
from semistream.relation.page_file import PageIndex, WrittenPages, write_pages

__all__ = ["CODE_COLUMN", "LAYOUTS", "Recipe", "build"]

LAYOUTS: Final = ("key", "given")
"""Rows in the order of their codes, or in the order given with each key's rows together."""

CODE_COLUMN: Final = "__code"
"""The stored column that holds hashed codes."""

_MIN_PAGE, _MAX_PAGE = 4096, 1 << 30


@dataclass(frozen=True)
class Recipe:
    """How a master table is to be built; checked when made."""

    key: tuple[str, ...]
    page_bytes: int
    layout: str
    filter_bits: int = 0

    @classmethod
    def of(
        cls, key: str | Sequence[str], page_bytes: int, layout: str, filter_bits: int = 0
    ) -> Recipe:
        """The recipe for these options; `OptionError` or `KeyColumnError` if one is bad."""
        names = (key,) if isinstance(key, str) else tuple(key)
        if not names or len(set(names)) != len(names):
            raise KeyColumnError(f"key={key!r} must name one or more different columns.")
        if layout not in LAYOUTS:
            raise OptionError(f"layout={layout!r} is not known. Use one of {', '.join(LAYOUTS)}.")
        if type(page_bytes) is not int or not _MIN_PAGE <= page_bytes <= _MAX_PAGE:
            raise OptionError(
                f"page_bytes={page_bytes!r} must be an int from {_MIN_PAGE} to {_MAX_PAGE}. "
                "65536 suits most disks."
            )
        check_bits(filter_bits)
        return cls(names, page_bytes, layout, filter_bits)


@dataclass(frozen=True)
class _Rows:
    """The rows to write and the order to write them in."""

    table: pa.Table
    codes: Codes
    order: NDArray[np.int64] | None
    rows_without_key: int
    code_column: str | None


def build(data: ArrowData, root: Path, recipe: Recipe, replace: bool) -> int:
    """Write the next version at `root` and commit it; its number."""
    version = _next_version(root, replace)
    rows = _prepare(data, recipe)
    made = _directories(root)
    stem = files.unused_name(f"{version:08d}")
    paths = {
        "pages": root / "data" / f"{stem}.pages.arrow",
        "index": root / "data" / f"{stem}.index.arrow",
    }
    if recipe.layout == "given":
        paths["locator"] = root / "data" / f"{stem}.locator.arrow"
        paths["locator_index"] = root / "data" / f"{stem}.locator-index.arrow"
    if recipe.filter_bits:
        paths["filter"] = root / "data" / f"{stem}.filter"
    try:
        written = _write(paths, rows, recipe)
        files.sync(root / "data")
        commit_manifest(root, _manifest(version, rows, recipe, written, paths))
    except BaseException:
        # Nobody can see them, but they would take space for ever.
        files.remove([*paths.values(), *made])
        raise
    return version


def _next_version(root: Path, replace: bool) -> int:
    if root.exists() and not root.is_dir():
        raise OptionError(f"{root} is a file. Give the path of a directory for the master table.")
    newest = newest_version(root)
    if newest and not replace:
        raise MasterExistsError(
            f"{root} already holds a master table (version {newest}). Pass replace=True to write "
            "its next version, or choose another path."
        )
    return newest + 1


def _directories(root: Path) -> list[Path]:
    """Make the directories; those that were made, each before its parent."""
    made = files.make_directories(root)
    return [
        *files.make_directories(root / "versions"),
        *files.make_directories(root / "data"),
        *made,
    ]


def _prepare(data: ArrowData, recipe: Recipe) -> _Rows:
    table = as_table(data)
    missing = [name for name in recipe.key if name not in table.column_names]
    if missing:
        raise KeyColumnError(
            f"The data has no key column {', '.join(missing)}; its columns are "
            f"{', '.join(table.column_names)}. Pass key= with one or more of these."
        )
    if CODE_COLUMN in table.column_names:
        raise OptionError(f"The name {CODE_COLUMN} is kept for semistream. Rename that column.")
    table = stored_table(table)
    codec = KeyCodec([table.schema.field(name) for name in recipe.key])
    codes, valid = _table_codes(table, codec, recipe.key)
    without_key = 0
    if valid is not None:
        without_key = int(len(codes) - valid.sum())
        table, codes = table.filter(pa.array(valid)), codes[valid]
    if not codec.exact:
        field = pa.field(CODE_COLUMN, pa.int64(), nullable=False)
        table = table.append_column(field, pa.array(codes))
    order = _order(codes, recipe.layout)
    return _Rows(table, codes, order, without_key, None if codec.exact else CODE_COLUMN)


def _table_codes(
    table: pa.Table, codec: KeyCodec, key: Sequence[str]
) -> tuple[Codes, NDArray[np.bool_] | None]:
    """Codes and validity of all rows, chunk by chunk."""
    codes: list[Codes] = [np.empty(0, np.int64)]
    valid: list[NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    for batch in table.select(list(key)).to_batches():
        some, fine = codec.codes(batch.columns)
        codes.append(some)
        valid.append(np.ones(len(some), np.bool_) if fine is None else fine)
    all_valid = np.concatenate(valid)
    return np.concatenate(codes), None if all_valid.all() else all_valid


def _order(codes: Codes, layout: str) -> NDArray[np.int64] | None:
    """The rows' order on disk, or None if they are in it already."""
    rank = codes
    if layout == "given":
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        rank = first[inverse]
    if len(rank) < 2 or bool((rank[1:] >= rank[:-1]).all()):
        return None
    return np.argsort(rank, kind="stable")


def _write(paths: dict[str, Path], rows: _Rows, recipe: Recipe) -> WrittenPages:
    written = write_pages(paths["pages"], rows.table, rows.codes, recipe.page_bytes, rows.order)
    written.index.save(paths["index"])
    codes = rows.codes if rows.order is None else rows.codes[rows.order]
    if "filter" in paths:
        _write_filter(paths["filter"], codes, recipe.filter_bits)
    if "locator" in paths:
        write_locator(paths["locator"], codes, written.index).save(paths["locator_index"])
    return written


def _write_filter(path: Path, codes: Codes, bits: int) -> None:
    """Write the filter of codes of which equal ones are adjacent."""
    distinct = codes[np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])] if len(codes) else codes
    members = MembershipFilter.sized(len(distinct), bits)
    members.add(distinct)
    members.save(path)


def _manifest(
    version: int, rows: _Rows, recipe: Recipe, written: WrittenPages, paths: dict[str, Path]
) -> Manifest:
    index: PageIndex = written.index
    return Manifest(
        version=version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        key=recipe.key,
        layout=recipe.layout,
        row_count=index.row_count,
        page_count=len(index),
        rows_without_key=rows.rows_without_key,
        page_bytes=recipe.page_bytes,
        widest_row=written.widest_row,
        schema=encode_schema(rows.table.schema),
        code_column=rows.code_column,
        files={role: StoredFile.of(path) for role, path in paths.items()},
    )
