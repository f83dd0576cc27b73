"""Master tables: R on disk.

`MasterTable` is what the rest of semistream uses. It hands out a `PageReader` over the pages and,
when they are not in code order, a `Locator` that says where a key's rows are.

    storage     the files, on a local disk or elsewhere, and copies of far pages on a local disk
    versions    manifests, drafts, and the removal of old versions
    updates     from one version and a change to the next version
    following   versions that follow the changes of a source, and the book of what was applied
    databases   tables that stay in a database and are read there

The other modules write, index and read pages (`page_file`, `page_index`, `reader`, `locator`,
`membership_filter`), map them into memory (`mapped_pages`; `cached_pages` for copies), build a
table (`build`), open it (`master_version`, `master_table`), number keys (`key_table`) and compare
versions (`shared_pages`).
"""

from semistream.relation.cached_pages import mapped_pages
from semistream.relation.databases import DatabaseMaster
from semistream.relation.locator import Locator
from semistream.relation.mapped_pages import MappedPages
from semistream.relation.master_table import MasterTable
from semistream.relation.membership_filter import MembershipFilter
from semistream.relation.page_index import PageIndex
from semistream.relation.reader import IO_MODES, Frame, PageReader
from semistream.relation.shards import shard_of
from semistream.relation.shared_pages import same_rows
from semistream.relation.storage import PACKED
from semistream.relation.versions.vacuum import Vacuumed, VersionInfo

MasterTable.use_databases(DatabaseMaster.at)

__all__ = [
    "IO_MODES",
    "PACKED",
    "DatabaseMaster",
    "Frame",
    "Locator",
    "MappedPages",
    "MasterTable",
    "MembershipFilter",
    "PageIndex",
    "PageReader",
    "Vacuumed",
    "VersionInfo",
    "mapped_pages",
    "same_rows",
    "shard_of",
]
