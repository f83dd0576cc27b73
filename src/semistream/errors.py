"""Every error a user of semistream can meet, as one tree.

Catch `SemistreamError` to catch them all. Each message says what was found, what was
expected and what to do next; it is written where the error is raised, because only there
are the names and sizes known.
"""

__all__ = [
    "ArrivalOrderError",
    "BudgetError",
    "CheckpointError",
    "ColumnClashError",
    "ConservationError",
    "CorruptPageError",
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
    "SemistreamError",
    "ShedFileError",
    "ShedSpaceError",
    "SinkError",
    "SourceError",
    "StreamSchemaError",
    "UnknownAlgorithmError",
    "UnsupportedTypeError",
]


class SemistreamError(Exception):
    """The root of all errors raised by semistream."""


class BudgetError(SemistreamError):
    """The memory budget is below the minimum, or a tuple is larger than its part can hold."""


class RateError(SemistreamError):
    """No memory, or not the memory given, reaches the rate that was asked for."""


class KeyColumnError(SemistreamError):
    """A key column is missing on either side, or `on` does not name key columns properly."""


class KeyTypeError(SemistreamError):
    """Key types that can never match, or a type that cannot be a join key (a float, say)."""


class ColumnClashError(SemistreamError):
    """A column name stands on both sides of the join."""


class MasterNotFoundError(SemistreamError):
    """There is no master table, or no such version of it, at the path."""


class MasterExistsError(SemistreamError):
    """A master table already stands at the path and replacing it was not asked for."""


class MasterFormatError(SemistreamError):
    """The master table is of a newer format, or its manifest or index is broken."""


class CorruptPageError(SemistreamError):
    """A page cannot be read back as it was written; the message names file and page."""


class UnknownAlgorithmError(SemistreamError):
    """No algorithm has this name; the message lists those there are."""


class OptionError(SemistreamError):
    """An option has a value that it cannot take."""


class UnsupportedTypeError(SemistreamError):
    """A payload column has a type that cannot be stored."""


class StreamSchemaError(SemistreamError):
    """A stream batch has another schema than the first batch had."""


class ArrivalOrderError(SemistreamError):
    """A timed stream gave an arrival that lies before the one it gave last."""


class ShedSpaceError(SemistreamError):
    """There is no room on disk for stream tuples that must be shed."""


class ShedFileError(SemistreamError):
    """A folder of shed tuples cannot be used: in use, broken, or of another stream."""


class InternalError(SemistreamError):
    """A broken invariant: a defect of semistream, not of its use."""


class JavaError(SemistreamError):
    """Java, which Spark runs on, is missing or too old."""


class MasterChangedError(SemistreamError):
    """A newer version of the master table does not fit the query that follows it."""


class CheckpointError(SemistreamError):
    """The checkpoint of a pipeline cannot be gone on from: its parts do not fit each other."""


class SinkError(SemistreamError):
    """A sink cannot be written to: it has the rows of another pipeline, or of another route."""


class ConservationError(SemistreamError):
    """A micro-batch has lost or doubled stream tuples; nothing more is written."""


class PipelineStateError(SemistreamError):
    """A pipeline was asked for what it cannot do now: started twice, say."""


class SourceError(SemistreamError):
    """Spark cannot read the rows that a command was given."""


class PipelineFileError(SemistreamError):
    """A pipeline file has what it cannot have, or lacks what it must have."""
