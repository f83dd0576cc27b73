"""All errors that semistream raises, as one tree.

Catch `SemistreamError` to catch them all. Each message says what was found, what was
expected and what to do next. It is written where the error is raised, because only there are
the names and sizes known.
"""

__all__ = [
    "ArrivalOrderError",
    "BudgetError",
    "CheckpointError",
    "ColumnClashError",
    "ConnectorError",
    "ConservationError",
    "CorruptPageError",
    "DatabaseError",
    "HistoryError",
    "InternalError",
    "JavaError",
    "KeyColumnError",
    "KeyTypeError",
    "MasterChangedError",
    "MasterExistsError",
    "MasterFormatError",
    "MasterNotFoundError",
    "OptionError",
    "PipelineFileError",
    "PipelineStateError",
    "RateError",
    "RowRoomError",
    "SemistreamError",
    "ShedFileError",
    "ShedSpaceError",
    "SinkError",
    "SourceError",
    "SparkLostError",
    "StaleMasterError",
    "StorageError",
    "StreamSchemaError",
    "UnknownAlgorithmError",
    "UnsupportedTypeError",
]


class SemistreamError(Exception):
    """The root of all errors raised by semistream."""


class BudgetError(SemistreamError):
    """The memory budget is below the minimum, or a tuple is larger than its part can hold.

    `least` is the minimum, if it is known.
    """

    def __init__(self, *text: object, least: int | None = None) -> None:
        """An error with a message."""
        super().__init__(*text)
        self.least = least


class RateError(SemistreamError):
    """The rate asked for cannot be reached, with the memory given or with any."""


class KeyColumnError(SemistreamError):
    """A key column is missing on either side, or `on` does not name key columns properly."""


class KeyTypeError(SemistreamError):
    """Key types that can never match, or a type that cannot be a join key, such as a float."""


class ColumnClashError(SemistreamError):
    """Stream and master both have a column of this name."""


class MasterNotFoundError(SemistreamError):
    """There is no master table, or no such version of it, at the path."""


class MasterExistsError(SemistreamError):
    """The path has a master table already, or another writer took the version's number."""


class MasterFormatError(SemistreamError):
    """The master table has another format, or its manifest, index or filter is broken."""


class CorruptPageError(SemistreamError):
    """A page cannot be read back as it was written; the message names file and page."""


class HistoryError(SemistreamError):
    """Two master rows of a key count at the same time; the message names the key."""


class UnknownAlgorithmError(SemistreamError):
    """No algorithm has this name; the message lists those there are."""


class OptionError(SemistreamError):
    """An option has a value that it cannot take."""


class UnsupportedTypeError(SemistreamError):
    """A payload column has a type that cannot be stored."""


class StreamSchemaError(SemistreamError):
    """A stream batch has a different schema than the first one, or is not a record batch."""


class ArrivalOrderError(SemistreamError):
    """An arrival of a timed stream is earlier than the one before it."""


class ShedSpaceError(SemistreamError):
    """There is no room on disk for stream tuples that must be shed."""


class ShedFileError(SemistreamError):
    """A folder of shed tuples cannot be used: in use, broken, or of another stream."""


class InternalError(SemistreamError):
    """A broken invariant: a bug in semistream, not a mistake of the user."""


class JavaError(SemistreamError):
    """Java, which Spark runs on, is missing or too old."""


class ConnectorError(SemistreamError):
    """A connector is not known, or does not fit the Spark that is installed."""


class MasterChangedError(SemistreamError):
    """A newer version of the master table does not fit the query that follows it."""


class StaleMasterError(SemistreamError):
    """The master lags further behind its source than `max_staleness` allows."""


class CheckpointError(SemistreamError):
    """A pipeline cannot continue from its checkpoint: it is in use, or its parts do not fit."""


class SinkError(SemistreamError):
    """A sink does not answer, refuses rows, or holds those of another pipeline or route."""


class ConservationError(SemistreamError):
    """A micro-batch has lost or doubled stream tuples; nothing more is written."""


class PipelineStateError(SemistreamError):
    """A pipeline cannot do what was asked in its present state; started twice, for example."""


class DatabaseError(SemistreamError):
    """A master in a database cannot be read: no server, no access, no table, no index, no room."""


class RowRoomError(DatabaseError):
    """More rows were found in a database, or wider ones, than there is room for."""


class SourceError(SemistreamError):
    """The rows that a command or a pipeline was given cannot be read."""


class PipelineFileError(SemistreamError):
    """A pipeline file is not valid: a key is unknown, missing or of the wrong type."""


class SparkLostError(SemistreamError):
    """Spark's Java process, or its workers, have ended while a pipeline ran."""


class StorageError(SemistreamError, OSError):
    """A disk, or a network, does not let files be read or written: full, read-only or not there."""
