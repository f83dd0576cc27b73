"""What goes wrong with a database, in one sentence each, and without credentials."""

from __future__ import annotations

from semistream.errors import DatabaseError
from semistream.relation.databases.address import Address
from semistream.relation.storage import scrubbed

__all__ = ["connection_error", "lacks_driver", "lost", "query_error"]


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


def query_error(address: Address, reason: str) -> DatabaseError:
    """The database refuses a query."""
    return DatabaseError(f"{address.shown} cannot be read: {scrubbed(reason).rstrip('.')}.")


def lost(address: Address, reason: str) -> DatabaseError:
    """The connection ended within a run, and the moment that the run had seen is gone."""
    return DatabaseError(
        f"The connection to {address.server} was lost ({scrubbed(reason).rstrip('.')}), and with "
        "it the moment that this run has read at: run it again; Spark does so by itself, as often "
        "as spark.task.maxFailures allows."
    )
