"""What goes wrong with a database, in one sentence each, and without credentials."""

from __future__ import annotations

from collections.abc import Sequence

from semistream.errors import DatabaseError
from semistream.relation.databases.address import Address
from semistream.relation.databases.source import SourceColumn
from semistream.relation.storage import scrubbed

__all__ = ["connection_error", "lacks_driver", "lost", "query_error", "unfit_value"]


def lacks_driver(package: str) -> DatabaseError:
    """The driver is not installed."""
    return DatabaseError(
        f"The driver {package} is not installed: pip install 'semistream[databases]', on the "
        "executors too."
    )


def connection_error(address: Address, refused: bool, no_database: bool) -> DatabaseError:
    """Nothing could be connected to."""
    user, password = address.variables
    if no_database:
        return DatabaseError(f"There is no such database, or not for this user: {address.server}.")
    if refused:
        return DatabaseError(
            f"{address.server} does not take the user or the password. They come from the "
            f"environment of each process, on Spark also of the workers: set {user} and {password}."
        )
    return DatabaseError(
        f"{address.server} does not answer: look whether the server runs, whether this machine "
        "reaches it, and whether it takes more connections."
    )


def query_error(address: Address, reason: str, changed: bool = False) -> DatabaseError:
    """The database refuses a query; `changed` if it lacks what it had before."""
    advice = " If the table was changed, open it again." if changed else ""
    return DatabaseError(f"{address.shown} cannot be read: {scrubbed(reason).rstrip('.')}.{advice}")


def unfit_value(
    address: Address, column: str, before: Sequence[SourceColumn], now: Sequence[SourceColumn]
) -> DatabaseError:
    """A value has no place in its column's type: the table has changed, or Arrow lacks it."""
    types = {one.name: one.type for one in now}
    changed = [one for one in before if types.get(one.name) != one.type]
    if changed:
        told = ", ".join(f"{c.name} was {c.type} and is {types.get(c.name)}" for c in changed)
        return DatabaseError(
            f"Columns of {address.shown} were changed since it was opened: {told}. Open it again."
        )
    (kind,) = (one.type for one in before if one.name == column)
    return DatabaseError(
        f"The column {column!r} of {address.shown} has a value that {kind} cannot hold, as NaN "
        "among decimals, or a date without a day. Mend the value, or leave the column out: open "
        "the table with columns=[…] and the others."
    )


def lost(address: Address, reason: str) -> DatabaseError:
    """The connection ended within a run, and the moment that the run had seen is gone."""
    return DatabaseError(
        f"The connection to {address.server} was lost ({scrubbed(reason).rstrip('.')}), and with "
        "it the moment that this run has read at: run it again; Spark does so by itself, as often "
        "as spark.task.maxFailures allows."
    )
