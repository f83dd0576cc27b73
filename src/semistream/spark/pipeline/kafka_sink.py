"""`KafkaSink`: results back to a topic, at least once, each with an id to know it by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from semistream.environment import filled
from semistream.errors import OptionError
from semistream.spark.columns import column

__all__ = ["KafkaSink"]

_SERVERS: Final = "kafka.bootstrap.servers"
_ID: Final = "semistream_id"


@dataclass(frozen=True)
class KafkaSink:
    """A topic: each row as JSON, with a header `semistream_id`.

    After a crash a batch may be sent again. A row then has the same id as before, so a reader who
    remembers ids sees it once.
    """

    topic: str
    key: str | Sequence[str] = ()
    """The column, or the columns, that make a record's key; by default the id."""
    options: Mapping[str, str] = field(default_factory=dict)
    """As Spark's Kafka writer takes them; `${NAME}` stands for a variable of the environment."""

    def __post_init__(self) -> None:
        """Check that a server is named."""
        if _SERVERS not in self.options:
            raise OptionError(
                f'KafkaSink({self.topic!r}) has no server. Give options={{"{_SERVERS}": '
                '"host:9092"}.'
            )

    def __repr__(self) -> str:
        # The values of options may be keys and passwords.
        return f"KafkaSink({self.topic!r}, options={sorted(self.options)})"

    def write(self, frame: DataFrame, batch: int, writer: str) -> None:
        """Send the rows of staged files."""
        place = F.col("_metadata")
        # A batch is staged once: file and row are the same whenever it is sent.
        told = F.concat_ws(
            "-", F.lit(str(batch)), F.regexp_extract(place["file_name"], "part-(.*)[.]parquet", 1)
        )
        told = F.concat_ws("-", told, place["row_index"].cast("string"))
        value = F.to_json(F.struct(*map(column, frame.columns)), {"ignoreNullFields": "false"})
        head = F.struct(F.lit(_ID).alias("key"), told.cast("binary").alias("value"))
        records = frame.select(
            self._key(told).alias("key"), value.alias("value"), F.array(head).alias("headers")
        )
        options = {name: filled(given) for name, given in self.options.items()}
        records.write.format("kafka").options(**options).option("topic", self.topic).save()

    def check(self, columns: list[str]) -> None:
        """Raise unless the rows have the columns of the key."""
        missing = [name for name in self._names if name not in columns]
        if missing:
            raise OptionError(
                f"The rows for the topic {self.topic} have no column {', '.join(missing)} for "
                f"their key; they have {', '.join(columns)}."
            )

    @property
    def _names(self) -> list[str]:
        return [self.key] if isinstance(self.key, str) else [*self.key]

    def _key(self, told: Column) -> Column:
        names = self._names
        if len(names) > 1:
            return F.to_json(F.struct(*map(column, names)))
        return column(names[0]).cast("string") if names else told
