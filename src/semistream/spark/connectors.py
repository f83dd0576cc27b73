"""Connectors by name: the jars and settings that a Spark session needs for other systems.

Spark resolves them by their coordinates when its Java process starts. Each release of a connector
fits some releases of Spark, and with another one fails with errors of the Java linker; the table
here knows which. A jar that the session is given as a file is not resolved again.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark

from semistream.errors import ConnectorError
from semistream.turns import turn

__all__ = ["CONNECTORS", "JDBC", "Connector", "check_has", "misfit", "resolved"]

_PACKAGES: Final = "spark.jars.packages"
_JARS: Final = "spark.jars"
_EXTENSIONS: Final = "spark.sql.extensions"
_IVY: Final = "spark.jars.ivySettings"
_LONGEST_TURN: Final = 300.0
"""Seconds to wait for another process that resolves jars."""
_LISTS: Final = (_PACKAGES, _JARS, _EXTENSIONS)
"""Settings that are lists: what a user gives is added to."""
_IVY_SETTINGS: Final = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true"/>
    <chain name="central-or-older">
      <resolver ref="central"/>
      <ibiblio name="older" m2compatible="true" usepoms="false"
               pattern="org/apache/spark/[module]/4.0.0/[module]-4.0.0.[ext]"/>
    </chain>
  </resolvers>
  <modules>
    <module organisation="org.apache.spark" name="spark-token-provider-kafka-0-10_2.13"
            resolver="central-or-older"/>
  </modules>
</ivysettings>
"""
"""Central only: Spark's own list has a repository besides that may keep one waiting for minutes.

A part of the Kafka connector is not in every mirror in each version. Its version 4.0.0 serves all.
"""


JDBC: Final = {
    "jdbc:postgresql:": "postgresql",
    "jdbc:mariadb:": "mariadb",
    "jdbc:mysql:": "mariadb",
}
"""Which connector has the driver for a URL."""
_LINKER: Final = re.compile(
    r"\b(NoSuchMethodError|NoSuchFieldError|NoClassDefFoundError|AbstractMethodError|"
    r"IncompatibleClassChangeError|IllegalAccessError)\b"
)
"""How Java says that a jar was made for another version of what it calls."""


@dataclass(frozen=True)
class Connector:
    """A connector: its coordinates for each Spark it fits, and the settings it asks for."""

    packages: Mapping[str, str]
    """From Spark's version, as "4.2", to coordinates."""
    settings: Mapping[str, str] = field(default_factory=dict)

    def coordinates(self, name: str, spark: str) -> str:
        """The coordinates for this Spark; `ConnectorError` if there are none."""
        if not self.fits(spark):
            newest = max(self.packages)
            raise ConnectorError(
                f"There is no {name} connector for Spark {spark}, which is installed. It exists "
                f"for Spark {', '.join(sorted(self.packages))}: pip install 'pyspark=={newest}.*'"
            )
        return self.packages[_minor(spark)]

    def fits(self, spark: str) -> bool:
        """Whether there is a release for this Spark."""
        return _minor(spark) in self.packages


def _minor(spark: str) -> str:
    """Without the last number: "4.2"."""
    return ".".join(spark.split(".")[:2])


def _same(coordinates: str) -> dict[str, str]:
    """A jar that does not depend on Spark's version."""
    return dict.fromkeys(("4.0", "4.1", "4.2", "4.3"), coordinates)


CONNECTORS: Final[Mapping[str, Connector]] = {
    "kafka": Connector(
        {
            "4.0": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
            # Before 4.1.3 it fails on the second batch of trigger="availableNow".
            "4.1": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
            "4.2": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "4.3": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        }
    ),
    "avro": Connector(
        {
            "4.0": "org.apache.spark:spark-avro_2.13:4.0.0",
            **dict.fromkeys(("4.1", "4.2", "4.3"), "org.apache.spark:spark-avro_2.13:4.1.1"),
        }
    ),
    "delta": Connector(
        {
            "4.0": "io.delta:delta-spark_4.0_2.13:4.4.0",
            "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
            "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
        },
        {
            _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    ),
    "iceberg": Connector(
        {
            "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
            "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        },
        {_EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"},
    ),
    "postgresql": Connector(_same("org.postgresql:postgresql:42.7.8")),
    "mariadb": Connector(_same("org.mariadb.jdbc:mariadb-java-client:3.5.6")),
}
"""What `local_session(connectors=…)` knows."""


@contextmanager
def resolved(names: Sequence[str], spark: str, conf: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The settings of a session with these connectors, while it starts.

    `conf` has the user's settings: they win, and lists among them are added to.
    """
    settings: dict[str, str] = {}
    for name in names:
        connector = _known(name)
        coordinates = connector.coordinates(name, spark)
        wanted = dict(connector.settings)
        if not _is_given(coordinates, conf):
            wanted[_PACKAGES] = coordinates
        for setting, value in wanted.items():
            if setting in _LISTS and setting in settings:
                value = f"{settings[setting]},{value}"
            settings[setting] = value
    for setting, value in conf.items():
        if setting in _LISTS and setting in settings:
            value = f"{value},{settings[setting]}"
        settings[setting] = value
    with tempfile.TemporaryDirectory(prefix="semistream-") as folder:
        if _PACKAGES in settings and "spark.jars.repositories" not in settings:
            file = Path(folder) / "ivy.xml"
            file.write_text(_IVY_SETTINGS)
            settings.setdefault(_IVY, str(file))
        # Two that fill one folder of jars at the same time break each other's downloads.
        alone = (
            turn("jars of connectors", _LONGEST_TURN) if _PACKAGES in settings else nullcontext()
        )
        with alone:
            yield settings


def check_has(
    format: str, where: str, names: Sequence[str], conf: Mapping[str, str], spark: str
) -> None:
    """Raise if a session with these connectors and settings would not know a format.

    Of JDBC, `format` is the URL. `where` names what needs it. Jars that come by another way are
    not looked into.
    """
    name = next((one for scheme, one in JDBC.items() if format.startswith(scheme)), format)
    if name not in CONNECTORS or name in names or _has_own_jars(conf):
        return
    artifact = CONNECTORS[name].coordinates(name, spark).split(":")[1]
    if not any(_spark_home().glob(f"jars/{artifact.partition('_')[0]}*.jar")):
        known = ", ".join(f'"{one}"' for one in (*names, name))
        raise ConnectorError(
            f"{where} needs the {name} connector, which Spark does not have by itself: add "
            f"connectors = [{known}] to [spark]."
        )


def _has_own_jars(conf: Mapping[str, str]) -> bool:
    """Whether jars, of whatever kind, come by settings, the environment, or Spark's own files."""
    home = Path(os.environ.get("SPARK_CONF_DIR") or _spark_home() / "conf")
    defaults = home / "spark-defaults.conf"
    said = " ".join([*conf, os.environ.get("PYSPARK_SUBMIT_ARGS", "")])
    if defaults.is_file():
        said += defaults.read_text("utf-8", "replace")
    return bool(re.search(r"jars|packages|extraClassPath|spark\.(remote|master)", said))


def _spark_home() -> Path:
    return Path(os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__))


def misfit(said: str, spark: str) -> ConnectorError | None:
    """If Java says, in this text, that a jar does not fit: that, in words, with what would."""
    found = _LINKER.search(said)
    if found is None:
        return None
    name = next((one for one in CONNECTORS if re.search(rf"[./]{one}[./]", said)), None)
    what = "A jar" if name is None else f"The {name} connector"
    return ConnectorError(
        f"{what} in this session was made for another version of Spark than {spark}, which runs "
        f"here: Java says {found[1]}. {_fitting(name, spark)}"
    )


def _fitting(name: str | None, spark: str) -> str:
    """What to take instead."""
    if name is None:
        return "Take its release for this Spark, or another Spark."
    fits = CONNECTORS[name].packages
    if CONNECTORS[name].fits(spark):
        return f"For this Spark take {fits[_minor(spark)]}."
    newest = max(fits)
    return f"Take Spark {newest} (pip install 'pyspark=={newest}.*') with {fits[newest]}."


def _known(name: str) -> Connector:
    if name not in CONNECTORS:
        near = difflib.get_close_matches(name, CONNECTORS, 1)
        meant = f" Is {near[0]!r} meant?" if near else ""
        raise ConnectorError(
            f"There is no connector {name!r}.{meant} Known are: {', '.join(CONNECTORS)}. For "
            f'others give coordinates: local_session(**{{"{_PACKAGES}": "group:name:version"}}).'
        )
    return CONNECTORS[name]


def _is_given(coordinates: str, conf: Mapping[str, str]) -> bool:
    """Whether the user names the artifact already, as a file or by coordinates of any version."""
    group, artifact, _ = coordinates.split(":")
    files = [Path(jar).name for jar in conf.get(_JARS, "").split(",")]
    named = conf.get(_PACKAGES, "").split(",")
    return any(file.startswith(f"{artifact}-") for file in files) or any(
        one.startswith(f"{group}:{artifact}:") for one in named
    )
