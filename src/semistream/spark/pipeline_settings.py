"""What a pipeline was asked to be, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from semistream.errors import OptionError
from semistream.relation import MasterTable
from semistream.relation.storage import Location
from semistream.spark.batch_frame import BatchShape, JoinSettings
from semistream.spark.batch_run import Outlets
from semistream.spark.folders import Folder
from semistream.spark.routes import REASON, Retry, parse_duration
from semistream.spark.sinks import ParquetSink, SinkLike, sink_of

__all__ = ["Asked", "PipelineSettings", "checked_checkpoint"]

_AVAILABLE_NOW = "availableNow"


@dataclass(frozen=True)
class Asked:
    """The routes and the timing as a user gives them; `Pipeline` says what each means."""

    how: str
    sink: SinkLike
    unmatched: Retry | SinkLike | None = None
    deferred: Location | None = None
    rejected: SinkLike | None = None
    checks: Mapping[str, str] | None = None
    batch_target: float | str | None = None
    trigger: float | str | None = None

    def outlets(self) -> Outlets:
        """The routes' ends."""
        if self.how not in ("left", "inner"):
            raise OptionError(f'how={self.how!r} is not known. Use one of: "left", "inner".')
        retry = self.unmatched if isinstance(self.unmatched, Retry) else None
        plain = None if retry is not None else self.unmatched
        dead = None if retry is None else retry.dead_letters
        return Outlets(
            sink=sink_of(self.sink, "sink"),
            how=self.how,
            unmatched=None if plain is None else sink_of(plain, "unmatched"),
            retry=retry,
            dead_letters=None if dead is None else sink_of(dead, "dead_letters"),
            rejected=None if self.rejected is None else sink_of(self.rejected, "rejected"),
        )

    def target(self) -> float | None:
        """The batch's time in seconds."""
        if self.batch_target is not None:
            return parse_duration(self.batch_target, "batch_target")
        if self.deferred is not None:
            raise OptionError(
                f"deferred={self.deferred!r} says where deferred tuples wait, but without "
                "batch_target none is ever deferred. Give batch_target too, or leave it out."
            )
        return None

    def spark_trigger(self) -> dict[str, Any]:
        """The trigger as Spark's writer takes it."""
        if self.trigger is None:
            return {}
        if self.trigger == _AVAILABLE_NOW:
            return {"availableNow": True}
        seconds = parse_duration(self.trigger, "trigger")
        return {"processingTime": f"{max(round(seconds * 1000), 1)} milliseconds"}


@dataclass(frozen=True)
class PipelineSettings:
    """A pipeline's settings, checked."""

    location: str
    """The master table's."""
    shape: BatchShape
    outlets: Outlets
    target: float | None
    trigger: Mapping[str, Any]

    @classmethod
    def checked(
        cls, source: DataFrame, master: MasterTable | Location, join: JoinSettings, asked: Asked
    ) -> PipelineSettings:
        """Raise the error that a user should see, or give the settings."""
        _check_source(source)
        table = master if isinstance(master, MasterTable) else MasterTable.open(master)
        outlets, target, trigger = asked.outlets(), asked.target(), asked.spark_trigger()
        checks = _checked(source, asked)
        defers = target is not None
        shape = BatchShape(source, table, join, outlets.retry, checks, defers)
        outlets.sink.check(shape.output.names)
        for sink in (outlets.unmatched, outlets.dead_letters):
            if sink is not None:
                sink.check(source.columns)
        if outlets.rejected is not None:
            outlets.rejected.check([*source.columns, REASON])
        return cls(table.location, shape, outlets, target, trigger)


def checked_checkpoint(checkpoint: Location, outlets: Outlets) -> Folder:
    """The checkpoint's folder, which no sink may be in the way of."""
    if not isinstance(checkpoint, str | os.PathLike):
        raise OptionError(f"checkpoint={checkpoint!r} must be the path, or the URI, of a folder.")
    folder = Folder.at(checkpoint)
    places: dict[str, str] = {}
    for name, sink in outlets.by_name().items():
        if not isinstance(sink, ParquetSink):
            continue
        place = Folder.at(sink.path).spark
        if place in places:
            raise OptionError(
                f"{name}={place} is also {places[place]}=: the rows of one would be taken for the "
                "other's. Give each a folder of its own."
            )
        if f"{folder.spark}/".startswith(f"{place}/"):
            raise OptionError(
                f"checkpoint={folder.spark} lies in {name}={place}, whose readers would take it "
                "for data. Give the checkpoint a folder elsewhere."
            )
        places[place] = name
    return folder


def _check_source(source: DataFrame) -> None:
    given: object = source
    if not isinstance(given, DataFrame) or not given.isStreaming:
        raise OptionError(
            f"source is a {type(given).__name__} that is no stream; a pipeline needs a streaming "
            "DataFrame (spark.readStream…). Join a batch DataFrame with ss.join."
        )
    if ".connect." in type(given).__module__:
        raise OptionError(
            "source belongs to a Spark Connect session, whose foreachBatch runs away from this "
            "process. Use a classic session, or ss.join with a sink of Spark's own."
        )


def _checked(source: DataFrame, asked: Asked) -> Mapping[str, str] | None:
    """The user's checks, tried on the source; None if nothing is ever rejected."""
    if asked.rejected is None:
        if asked.checks:
            raise OptionError(
                f"checks={dict(asked.checks)!r} would reject tuples, but rejected= is not given. "
                "Say where rejected tuples go."
            )
        return None
    if REASON in (name.lower() for name in source.columns):
        raise OptionError(
            f"The source has a column {REASON!r}, which rejected tuples get besides their own. "
            "Rename it."
        )
    if not isinstance(asked.checks, Mapping | None):
        raise OptionError(
            f"checks={asked.checks!r} must be a mapping from a reason to an SQL predicate, such as "
            '{"quantity is not positive": "quantity > 0"}.'
        )
    for reason, predicate in (asked.checks or {}).items():
        try:
            source.where(predicate).schema  # noqa: B018 (asking for it makes Spark look)
        except PySparkException as error:
            raise OptionError(
                f"The check {reason!r} is no SQL predicate on the source: {error}. Its columns "
                f"are {source.columns}."
            ) from error
    return asked.checks or {}
