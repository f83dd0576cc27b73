"""A version of a master table in a few lines, for people to read."""

from __future__ import annotations

from semistream.keys import KeyCodec
from semistream.relation.page_index import PageIndex
from semistream.relation.versions.manifest import Manifest

__all__ = ["describe"]


def _compressed(manifest: Manifest, pages: PageIndex) -> str:
    if manifest.compression is None or not len(pages):
        return ""
    share = pages.stored_bytes(0, len(pages)) / int(pages.length.sum())
    return f", by {manifest.compression} to {share:.0%}"


def describe(manifest: Manifest, pages: PageIndex, index_bytes: int, path: str) -> str:
    """What the version holds. `pages` may be the pages of one shard only."""
    stored = sum(file.bytes for file in manifest.data_files)
    rows = pages.row_count
    average = pages.stored_bytes(0, len(pages)) / rows if rows else 0.0
    schema = manifest.stored_schema
    exact = KeyCodec([schema.field(name) for name in manifest.key]).exact
    shards = len(manifest.shard_starts) - 1
    members = manifest.files.get("filter")
    lines = {
        "version": f"{manifest.version} of {manifest.created} ({manifest.operation})",
        "key": f"{', '.join(manifest.key)} ({'exact' if exact else 'hashed'})",
        "layout": manifest.layout + (f", {shards:,} shards" if shards > 1 else ""),
        "rows": f"{rows:,} ({manifest.rows_without_key:,} without a key left out)",
        "row bytes": f"{average:,.1f} on disk, on average; up to {manifest.widest_row:,} in memory",
        "pages": f"{len(pages):,} of at most {manifest.page_bytes:,} bytes"
        + _compressed(manifest, pages),
        "bytes": f"{stored:,} on disk, in {len(manifest.data_files):,} files",
        "index": f"{index_bytes:,} bytes in memory",
        "filter": f"{members.bytes:,} bytes in memory" if members else "none",
    }
    width = max(map(len, lines))
    body = "\n".join(f"  {name:<{width}}  {text}" for name, text in lines.items())
    return f"master table {path}\n{body}"
