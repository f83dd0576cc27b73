"""What a pipeline knows of the Kafka topics that it reads: for errors that name them.

Kafka's own errors do not: "This server does not host this topic-partition".
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from semistream.errors import OptionError, SemistreamError, SinkError, SourceError

__all__ = [
    "KafkaSource",
    "check_answers",
    "check_options",
    "columns_of",
    "explained_by_kafka",
    "kafka_sources",
]

_SERVERS: Final = "kafka.bootstrap.servers"
_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_CHOICES: Final = ("subscribe", "subscribePattern", "assign")
_CONNECT_SECONDS: Final = 5.0
_LOST: Final = "may have been lost because they are not available in Kafka"
_CHANGED: Final = re.compile(r"Partition (\S+)-\d+ offset was changed")
_NOT_IN_KAFKA: Final = re.compile(r"Topic (\S+) not present in metadata")
_SILENT: Final = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|Retriable\w*)Exception: "
    r"([^\n]*)"
)
_REFUSED: Final = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(\w*(?:Auth|Ssl)\w*)Exception: ([^\n]*)"
)
_GO_ON: Final = "Nothing is lost: start again with the same checkpoint."


@dataclass(frozen=True)
class KafkaSource:
    """Where a stream reads from."""

    servers: str
    topics: str
    """As the user gave them."""

    @property
    def shown(self) -> str:
        """The topics in a sentence."""
        names = [name.strip() for name in self.topics.split(",")]
        return f"topic {names[0]}" if len(names) == 1 else f"topics {', '.join(names)}"


def kafka_sources(source: DataFrame) -> list[KafkaSource]:
    """The Kafka topics among the sources of a stream."""
    found = []
    leaves = source._jdf.queryExecution().logical().collectLeaves()
    for number in range(leaves.size()):
        try:
            leaf = leaves.apply(number)
            if leaf.sourceName() != "kafka":
                continue
            options = {str(name).lower(): str(value) for name, value in leaf.extraOptions().items()}
        except (Py4JError, TypeError):
            # Another kind of source; what plans are made of is no public part of Spark.
            continue
        topics = next((options[one.lower()] for one in _CHOICES if one.lower() in options), "")
        found.append(KafkaSource(options.get(_SERVERS, ""), topics))
    return found


def check_options(options: Mapping[str, Any]) -> None:
    """Raise unless options of Spark's Kafka source name servers and topics."""
    given = {name.lower() for name in options}
    if _SERVERS not in given:
        raise OptionError(
            f'A Kafka source must name its servers. Add "{_SERVERS}" = "host:9092" to its options.'
        )
    if sum(one.lower() in given for one in _CHOICES) != 1:
        raise OptionError(
            f"A Kafka source must have one of {', '.join(_CHOICES)} in its options. To read two "
            'topics, add subscribe = "sales,returns".'
        )


def columns_of(options: Mapping[str, Any]) -> list[str]:
    """The columns of a Kafka source with these options."""
    asked = {name.lower(): str(value).lower() for name, value in options.items()}
    return [*_COLUMNS, *(["headers"] if asked.get("includeheaders") == "true" else [])]


def check_answers(sources: Sequence[KafkaSource]) -> None:
    """Raise unless a server of each source takes connections; Kafka's client would try for long."""
    for source in sources:
        servers = [one.strip().rpartition("//")[2] for one in source.servers.split(",")]
        if not any(map(_answers, servers)):
            raise SourceError(
                f"No Kafka broker answers at {source.servers}, where the {source.shown} should be. "
                f'Start it, or mend "{_SERVERS}". {_GO_ON}'
            )


def _answers(server: str) -> bool:
    host, _, port = server.rpartition(":")
    if not port.isdigit():
        # Kafka says itself what is wrong with it.
        return True
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            return True
    except OSError:
        return False


def explained_by_kafka(
    error: BaseException, name: str, sources: Sequence[KafkaSource]
) -> SemistreamError | None:
    """If Kafka has refused something: an error that says what."""
    # The reason is often that of an exception below. This trace is no public part of Spark.
    text = f"{error}\n{getattr(error, '_stackTrace', '')}"
    if found := _NOT_IN_KAFKA.search(text):
        return SinkError(
            f"The pipeline {name} writes to the topic {found[1]}, which does not exist. Make it. "
            f"{_GO_ON}"
        )
    shown = " and ".join(f"the {source.shown} of {source.servers}" for source in sources)
    if sources and "UnknownTopicOrPartitionException" in text:
        return SourceError(
            f"The pipeline {name} reads {shown}, and what it reads does not exist there, or has "
            f"been deleted. Make the topic, or name another. {_GO_ON}"
        )
    changed = _CHANGED.search(text)
    if sources and (changed or _LOST in text):
        what = shown if changed is None else f"the topic {changed[1]}"
        return SourceError(
            f"Kafka no longer has records of {what} that the pipeline {name} has not read: they "
            "were too old, or the topic was deleted and made anew. All that was read is written. "
            'To go on without them, set failOnDataLoss = "false" in the source\'s options; to read '
            "a new topic from its beginning, begin with a new checkpoint."
        )
    if found := _REFUSED.search(text):
        return SourceError(
            f"Kafka refuses the pipeline {name} ({found[1]}: {found[2].rstrip('.')}). Mend user, "
            f"password or certificate. {_GO_ON}"
        )
    if found := _SILENT.search(text):
        reads = f", which reads {shown}" if sources else ""
        return SourceError(
            f"Kafka does not answer the pipeline {name}{reads}: {found[1].rstrip('.')}. See to the "
            f"broker. {_GO_ON}"
        )
    return None
