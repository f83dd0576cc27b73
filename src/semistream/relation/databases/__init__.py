"""Masters that stay in a database, PostgreSQL or MariaDB and MySQL, and are read there.

`DatabaseMaster` is a master table whose pages are ranges of keys: a page is what the database's
own index finds in its range. Each run of a join sees the table at one moment.

    address      where the table is and how it is read, as one text without secrets
    postgresql   the table through ADBC, as Arrow comes over the wire
    mysql        the table as one text for many rows, which Arrow's CSV reader parses
    division     ranges of keys: from a sample and a walk along the index to a page index
    session      one connection, and the transaction that sees one moment
    reader       pages, and rows by key
    master       all of it as a master table
"""

from semistream.relation.databases.master import DatabaseMaster
from semistream.relation.databases.session import seeing

__all__ = ["DatabaseMaster", "seeing"]
