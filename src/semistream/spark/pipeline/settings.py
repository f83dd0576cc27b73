"""Arguments of a pipeline, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from semistream.errors import OptionError
from semistream.relation.storage import Location, harmless, without_secrets
from semistream.spark.columns import first_sentence
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.routes import parse_duration
from semistream.spark.pipeline.stage_task import REASON

__all__ = [
    "check_no_columns",
    "check_no_terms",
    "check_source",
    "checkpoint_folder",
    "rejecting_checks",
    "spark_trigger",
    "target_seconds",
]

_AVAILABLE_NOW: Final = "availableNow"


def check_source(source: object) -> None:
    """Raise unless the source is a streaming frame of a classic session."""
    if not isinstance(source, DataFrame) or not source.isStreaming:
        raise OptionError(
            f"source is a {type(source).__name__} that is no stream; a pipeline needs a streaming "
            "DataFrame (spark.readStream…). Join a batch DataFrame with ss.join."
        )
    if ".connect." in type(source).__module__:
        raise OptionError(
            "source belongs to a Spark Connect session, whose foreachBatch runs away from this "
            "process. Use a classic session, or ss.join with a sink of Spark's own."
        )


def check_no_columns(how: str, columns: Sequence[str] | None) -> None:
    """Raise if a join that gives no columns of the master is to give some."""
    if columns:
        raise OptionError(
            f"columns={list(columns)!r} are the master's, and how={how!r} gives the stream's only. "
            "Leave columns out."
        )


def check_no_terms(terms: Mapping[str, Any]) -> None:
    """Raise if terms of one join are given beside several look-ups, each of which has its own."""
    given = [name for name, value in terms.items() if value is not None]
    if given:
        raise OptionError(
            f"{', '.join(f'{name}=' for name in given)} is for a pipeline with one master. With a "
            "list, each look-up has its own terms: ss.Lookup(master, on=…, how=…, columns=[…])."
        )


def target_seconds(batch_target: float | str | None, deferred: Location | None) -> float | None:
    """How long a batch may take; None for any time, and then nothing is deferred."""
    if batch_target is not None:
        return parse_duration(batch_target, "batch_target")
    if deferred is not None:
        raise OptionError(
            f"deferred={without_secrets(deferred)} says where deferred tuples wait, but without "
            "batch_target none is ever deferred. Give batch_target too, or leave it out."
        )
    return None


def spark_trigger(trigger: float | str | None) -> dict[str, Any]:
    """The trigger as Spark's writer takes it; empty for Spark's default."""
    if trigger is None:
        return {}
    if trigger == _AVAILABLE_NOW:
        return {"availableNow": True}
    seconds = parse_duration(trigger, "trigger")
    return {"processingTime": f"{max(round(seconds * 1000), 1)} milliseconds"}


def rejecting_checks(
    source: DataFrame, checks: Mapping[str, str] | None, is_rejecting: bool
) -> Mapping[str, str] | None:
    """The user's checks, tried on the source; None if nothing is ever rejected."""
    if not is_rejecting:
        if checks:
            raise OptionError(
                f"checks={dict(checks)!r} would reject tuples, but rejected= is not given. "
                "Say where rejected tuples go."
            )
        return None
    if REASON in (name.lower() for name in source.columns):
        raise OptionError(
            f"The source has a column {REASON!r}, which rejected tuples get besides their own. "
            "Rename it."
        )
    if not isinstance(checks, Mapping | None):
        raise OptionError(
            f"checks={checks!r} must be a mapping from a reason to an SQL predicate, such as "
            '{"quantity is not positive": "quantity > 0"}.'
        )
    for reason, predicate in (checks or {}).items():
        try:
            source.where(predicate).schema  # noqa: B018 (asking for it makes Spark look)
        except PySparkException as error:
            raise OptionError(
                f"The check {reason!r} is no SQL predicate on the source: "
                f"{first_sentence(error)} Its columns are {source.columns}."
            ) from harmless(error)
    return checks or {}


def checkpoint_folder(checkpoint: Location) -> Folder:
    """The folder of the checkpoint."""
    if not isinstance(checkpoint, str | os.PathLike):
        raise OptionError(
            f"checkpoint is a {type(checkpoint).__name__}; it must be the path, or the URI, of "
            "a folder."
        )
    return Folder.at(checkpoint)
