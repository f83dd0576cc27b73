"""A stream to try things with: Zipf-distributed sales as a Spark data source.

    spark.readStream.format("semistream").option("keys", 100_000).option("rate", 5_000).load()

Offsets are numbers of stream tuples. `readStream` needs Spark 4.2, which tells readers where a
batch starts.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib.util import find_spec

from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession
from pyspark.sql import datasource as api
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from semistream.errors import OptionError
from semistream.spark.sales import SALES, SalesReader, SourceOptions

__all__ = ["SemistreamSource", "check_streaming", "register_source"]


def register_source(spark: SparkSession) -> None:
    """Make `format("semistream")` known to a session, for `read` and `readStream`."""
    spark.dataSource.register(SemistreamSource)


class SemistreamSource(api.DataSource):
    """The data source; its options are those of `SourceOptions`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Options are checked here, so that a bad one fails `load()`."""
        super().__init__(options)
        self._parsed = SourceOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return "semistream"

    def schema(self) -> StructType:
        """The columns of a sale."""
        return from_arrow_schema(SALES)

    def reader(self, schema: StructType) -> SalesReader:
        """A reader of all `rows`, for `spark.read`."""
        _check_schema(schema)
        if self._parsed.rows is None:
            raise OptionError(
                "A batch read of an endless stream never ends. Say how many rows with "
                '.option("rows", …), or use spark.readStream.'
            )
        return SalesReader(self._parsed)

    def streamReader(self, schema: StructType) -> api.DataSourceStreamReader:  # noqa: N802
        """A reader for `spark.readStream`."""
        _check_schema(schema)
        check_streaming()
        from semistream.spark.sales_stream import SalesStreamReader

        return SalesStreamReader(self._parsed)


def check_streaming() -> None:
    """`OptionError` if this Spark is too old for the stream."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        raise OptionError(
            f"The made-up stream needs Spark 4.2 or newer, and this is Spark {spark_version}: "
            "pip install 'pyspark==4.2.*', or read a stream of your own."
        )


def _check_schema(schema: StructType) -> None:
    if schema != from_arrow_schema(SALES):
        raise OptionError(
            f"The schema given is {schema.simpleString()}, but this source always has "
            f"{from_arrow_schema(SALES).simpleString()}. Leave .schema(…) out, and select."
        )
