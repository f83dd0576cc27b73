"""R in files: page files, their index, versions, and the readers that fill a disk buffer.

`MasterTable` is what the rest of semistream uses; it hands out a `PageReader` over the pages
and, when they are not in code order, a `Locator` that says where a key's rows are.
"""

from semistream.relation.locator import Locator
from semistream.relation.mapped_pages import MappedPages
from semistream.relation.master_table import MasterTable
from semistream.relation.membership_filter import MembershipFilter
from semistream.relation.page_index import PageIndex
from semistream.relation.reader import IO_MODES, Frame, PageReader
from semistream.relation.shards import shard_of
from semistream.relation.vacuum import Vacuumed, VersionInfo

__all__ = [
    "IO_MODES",
    "Frame",
    "Locator",
    "MappedPages",
    "MasterTable",
    "MembershipFilter",
    "PageIndex",
    "PageReader",
    "Vacuumed",
    "VersionInfo",
    "shard_of",
]
