"""The next version of a master table: its new pages, index, locator and filter, and the commit.

An update starts from one version and commits the next number. If another writer has taken that
number, the update is refused and leaves nothing visible, so no writer's change is ever lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.crash_points import reached
from semistream.errors import MasterExistsError, OptionError, UnsupportedTypeError
from semistream.relation.build import distinct
from semistream.relation.master_version import MasterVersion
from semistream.relation.membership_filter import MembershipFilter
from semistream.relation.page_file import WrittenPages, page_file_name
from semistream.relation.page_index import PageIndex
from semistream.relation.reader import PageReader
from semistream.relation.storage import PageFiles
from semistream.relation.stored_rows import pages_of, row_codes
from semistream.relation.updates.change import Change
from semistream.relation.updates.relocation import rewrite_locator
from semistream.relation.updates.rewrite import Rewrite, Rewritten
from semistream.relation.versions.draft import Draft
from semistream.relation.versions.manifest import (
    Manifest,
    StoredFile,
    encode_schema,
    newest_version,
    now,
    store,
    unused_id,
)

__all__ = ["is_scattered", "update"]

_LEAST_SHARE = 0.6
"""A filter that has less than this share of its intended bits per key is rebuilt, larger."""
_MOST_FILES = 64
"""A table with more page files is scattered, unless it has far more pages than that."""


def update(
    master: MasterVersion, change: Change, everything: bool = False, branch: bool = False
) -> int:
    """Write and commit the version after the master's. Returns its number.

    With `everything`, all pages are packed into one new file. With `branch`, the master need not be
    the newest version, and the number is the next that is free.
    """
    if not branch:
        _check_newest(master)
    version = newest_version(master.storage) + 1 if branch else master.version + 1
    with Draft(master.storage, version) as draft:
        name = draft.file(page_file_name(master.compression))
        rewrite = Rewrite(master, change, name, everything)
        try:
            written = rewrite.run()
        except pa.ArrowNotImplementedError as error:
            raise UnsupportedTypeError(
                f"Rows of {master.path} cannot be moved from page to page: Arrow says {error}. "
                "Build the master anew, with a struct in place of the union."
            ) from error
        reached("update.pages")
        manifest = _next_manifest(master, version, change, rewrite.result, written, name)
        index, manifest = _indexed(master, draft, manifest, rewrite.result, written)
        reached("update.index")
        if master.layout == "given":
            manifest = _relocated(master, draft, manifest, rewrite.result)
        if master.filter_bytes:
            manifest = _filtered(master, draft, manifest, index, change, everything)
            reached("update.filter")
        draft.commit(manifest)
    return version


def is_scattered(master: MasterVersion) -> bool:
    """Whether it is time for an update to pack all pages.

    That rewrites them all. An update pays for 64 of them, so large tables are packed rarely.
    """
    files = len(master.manifest.page_files)
    return files >= max(_MOST_FILES, master.page_count // _MOST_FILES)


def _check_newest(master: MasterVersion) -> None:
    if master.is_shard:
        raise OptionError(
            f"{master!r} is one shard. Update the whole master table: MasterTable.open(path)."
        )
    newest = newest_version(master.storage)
    if newest > master.version:
        raise MasterExistsError(
            f"This is version {master.version} of {master.path}, but version {newest} was begun "
            "or committed by another build or update. Open the newest version and update that. "
            "If none is newer than this one, vacuum() clears what a stopped writer has left."
        )


def _next_manifest(
    master: MasterVersion,
    version: int,
    change: Change,
    result: Rewritten,
    written: WrittenPages | None,
    name: str,
) -> Manifest:
    """The manifest of the new version, which still names all old files."""
    base = master.manifest
    new = () if written is None else (StoredFile(name, written.bytes),)
    return replace(
        base,
        version=version,
        created=now(),
        build_id=unused_id(),
        operation=change.operation,
        rows_without_key=base.rows_without_key + change.rows_without_key,
        widest_row=max(base.widest_row, 0 if written is None else written.widest_row),
        page_files=(*base.page_files, *new),
        shard_starts=result.shard_starts,
        schema=base.schema if change.schema is None else encode_schema(change.schema),
    )


def _indexed(
    master: MasterVersion,
    draft: Draft,
    manifest: Manifest,
    result: Rewritten,
    written: WrittenPages | None,
) -> tuple[PageIndex, Manifest]:
    """Write the index, and drop files that no page is in any more from the manifest."""
    index = result.index(master.pages, None if written is None else written.index)
    used = np.unique(index.file)
    numbers = np.zeros(len(manifest.page_files), np.int32)
    numbers[used] = np.arange(len(used))
    index = index.renumbered(numbers)
    stored = store(master.storage, draft.file("index.arrow"), index.to_bytes())
    return index, replace(
        manifest,
        row_count=index.row_count,
        page_count=len(index),
        page_files=tuple(manifest.page_files[number] for number in used),
        files={**manifest.files, "index": stored},
    )


def _relocated(
    master: MasterVersion, draft: Draft, manifest: Manifest, result: Rewritten
) -> Manifest:
    """Write the new locator."""
    name = draft.file("locator.arrow")
    written, starts = rewrite_locator(master, result, f"data/{name}")
    reached("locator.pages")
    index = store(master.storage, draft.file("locator-index.arrow"), written.index.to_bytes())
    fields: dict[str, Any] = {
        "locator_files": (StoredFile(name, written.bytes),),
        "locator_starts": starts,
    }
    return replace(manifest, files={**manifest.files, "locator_index": index}, **fields)


def _filtered(
    master: MasterVersion,
    draft: Draft,
    manifest: Manifest,
    index: PageIndex,
    change: Change,
    everything: bool,
) -> Manifest:
    """Write the filter with the new keys added. Deleted keys stay in it unless it is rebuilt."""
    old = master.membership_filter()
    if old is None:
        return manifest
    codes = distinct(np.sort(change.codes))
    keys = old.keys + int(np.count_nonzero(~old.may_contain(codes)))
    if everything or old.bits_for(keys) < _LEAST_SHARE * old.bits:
        new = MembershipFilter.sized(min(keys, index.row_count), old.bits)
        names = tuple(file.path for file in manifest.page_files)
        files = PageFiles(master.storage, names, compression=master.compression)
        with PageReader(files, index, master.stored_schema, "buffered") as reader:
            for _, batch in pages_of(reader, np.arange(len(index))):
                new.add(row_codes(master, batch))
    else:
        new = old.extended(codes, keys)
    stored = store(master.storage, draft.file("filter"), new.data)
    return replace(manifest, files={**manifest.files, "filter": stored})
