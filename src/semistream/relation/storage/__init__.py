"""Where the files of a master table are: a folder of this machine, or any other filesystem.

The rest of `relation` reads and writes files through a `Storage` and does not know which it is.
A `compressed_file` is read as if it were not compressed. Pages of far files can be read through a
`page_cache` on a local disk, by a `cached_file`.
"""

from semistream.relation.storage.cached_file import CachedFile, FilePages
from semistream.relation.storage.compressed_file import (
    CODECS,
    CompressedFile,
    check_compression,
    compressed,
    room_to_read,
)
from semistream.relation.storage.faults import storage_error, storage_faults
from semistream.relation.storage.files import (
    FOLDERS,
    FileEntry,
    PageSource,
    Storage,
    checksum_bytes,
    unused_name,
)
from semistream.relation.storage.local import LocalStorage
from semistream.relation.storage.location import (
    Location,
    inside,
    is_database,
    is_uri,
    local_path,
    storage_at,
)
from semistream.relation.storage.nowhere import Nowhere
from semistream.relation.storage.packing import PACKED, Packing
from semistream.relation.storage.page_cache import CacheSetting
from semistream.relation.storage.page_files import PageFiles
from semistream.relation.storage.remote import RemoteStorage
from semistream.relation.storage.secrecy import (
    harmless,
    hides,
    opened,
    scrubbed,
    without_secrets,
)

__all__ = [
    "CODECS",
    "FOLDERS",
    "PACKED",
    "CacheSetting",
    "CachedFile",
    "CompressedFile",
    "FileEntry",
    "FilePages",
    "LocalStorage",
    "Location",
    "Nowhere",
    "Packing",
    "PageFiles",
    "PageSource",
    "RemoteStorage",
    "Storage",
    "check_compression",
    "checksum_bytes",
    "compressed",
    "harmless",
    "hides",
    "inside",
    "is_database",
    "is_uri",
    "local_path",
    "opened",
    "room_to_read",
    "scrubbed",
    "storage_at",
    "storage_error",
    "storage_faults",
    "unused_name",
    "without_secrets",
]
