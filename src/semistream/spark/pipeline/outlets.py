"""Outlets: the sinks and queues of a pipeline, where its routes end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from semistream.errors import OptionError
from semistream.relation.storage import without_secrets
from semistream.spark.pipeline.folders import Folder
from semistream.spark.pipeline.routes import Retry
from semistream.spark.pipeline.sinks import ParquetSink, Sink, SinkLike, sink_of
from semistream.spark.pipeline.stage_task import REASON

__all__ = ["Outlets"]


@dataclass(frozen=True)
class Outlets:
    """Where each route ends."""

    sink: Sink
    how: str
    """Whether unmatched tuples that go nowhere else are emitted ("left") or not (all others)."""
    unmatched: Sink | None = None
    retry: Retry | None = None
    dead_letters: Sink | None = None
    rejected: Sink | None = None

    @classmethod
    def of(
        cls,
        sink: SinkLike,
        how: str,
        unmatched: Retry | SinkLike | None,
        rejected: SinkLike | None,
    ) -> Self:
        """From the arguments of `Pipeline`."""
        if how not in ("left", "inner", "semi", "anti"):
            known = '"left", "inner", "semi", "anti"'
            raise OptionError(f"how={how!r} is not known. Use one of: {known}.")
        if how == "anti" and isinstance(unmatched, Retry):
            raise OptionError(
                'how="anti" gives the tuples without a master row to sink=, and the others have '
                "nothing to wait for. Leave unmatched= out, or give a sink for them."
            )
        retry = unmatched if isinstance(unmatched, Retry) else None
        plain = None if retry is not None else unmatched
        dead = None if retry is None else retry.dead_letters
        return cls(
            sink=sink_of(sink, "sink"),
            how=how,
            unmatched=None if plain is None else sink_of(plain, "unmatched"),
            retry=retry,
            dead_letters=None if dead is None else sink_of(dead, "dead_letters"),
            rejected=None if rejected is None else sink_of(rejected, "rejected"),
        )

    def by_name(self) -> dict[str, Sink]:
        """The sinks that are given, under the names of their arguments."""
        sinks = {
            "sink": self.sink,
            "unmatched": self.unmatched,
            "dead_letters": self.dead_letters,
            "rejected": self.rejected,
        }
        return {name: sink for name, sink in sinks.items() if sink is not None}

    @property
    def emitted(self) -> tuple[str, ...]:
        """The routes whose rows go to the sink."""
        if self.retry is not None:
            return ("joined", "expired") if self.retry.then == "emit" else ("joined",)
        is_plain = self.how == "left" and self.unmatched is None
        return ("joined", "unmatched") if is_plain else ("joined",)

    @property
    def folders(self) -> dict[str, str | None]:
        """The folder where each route that ends is staged; None if its rows go nowhere."""
        own = {"unmatched": self.unmatched, "expired": self.dead_letters, "rejected": self.rejected}
        apart = {route: None if sink is None else route for route, sink in own.items()}
        return apart | dict.fromkeys(self.emitted, "joined")

    def check_columns(self, stream: Sequence[str], output: Sequence[str]) -> None:
        """Raise unless each sink can take its rows: of the stream's columns, or the output's."""
        columns = {"sink": [*output], "rejected": [*stream, REASON]}
        for name, sink in self.by_name().items():
            sink.check(columns.get(name, [*stream]))

    def check_apart(self, checkpoint: Folder) -> None:
        """Raise unless each Parquet sink has a folder of its own, without the checkpoint in it."""
        places: dict[str, str] = {}
        for name, sink in self.by_name().items():
            if not isinstance(sink, ParquetSink):
                continue
            place = Folder.at(sink.path).spark
            if place in places:
                raise OptionError(
                    f"{name}={without_secrets(place)} is also {places[place]}=: the rows of one "
                    "would be taken for the other's. Give each a folder of its own."
                )
            if f"{checkpoint.spark}/".startswith(f"{place}/"):
                raise OptionError(
                    f"checkpoint={checkpoint.shown} lies in {name}={without_secrets(place)}, whose "
                    "readers would take it for data. Give the checkpoint a folder elsewhere."
                )
            places[place] = name
