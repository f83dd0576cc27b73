"""Which jars a session gets for a connector, and what is refused."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

from semistream.errors import ConnectorError
from semistream.spark.connectors import CONNECTORS, misfit, resolved


def packages(names: list[str], spark: str, **conf: str) -> list[str]:
    given = {name.replace("_", "."): value for name, value in conf.items()}
    with resolved(names, spark, given) as settings:
        return settings.get("spark.jars.packages", "").split(",")


def test_coordinates_follow_the_installed_spark() -> None:
    assert packages(["kafka"], "4.2.1") == ["org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"]
    assert packages(["kafka"], "4.0.3") == ["org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"]
    both = packages(["kafka", "delta"], "4.2.0")
    assert [one.split(":")[1] for one in both] == [
        "spark-sql-kafka-0-10_2.13",
        "delta-spark_4.2_2.13",
    ]


def test_a_connector_that_has_no_release_for_this_spark_is_refused_in_one_sentence() -> None:
    with pytest.raises(
        ConnectorError, match=r"no delta connector for Spark 4\.3\.0.*pyspark==4\.2"
    ):
        packages(["delta"], "4.3.0")
    with pytest.raises(ConnectorError, match=r"iceberg connector for Spark 4\.2\.1.*pyspark==4\.1"):
        packages(["iceberg"], "4.2.1")


def test_an_unknown_connector_is_refused_with_the_list() -> None:
    with pytest.raises(ConnectorError, match="kafka, avro, delta, iceberg"):
        packages(["oracle"], "4.2.0")


def test_what_the_user_gives_is_kept_and_not_resolved_again() -> None:
    file = "/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar"
    with resolved(["kafka"], "4.2.0", {"spark.jars": file}) as settings:
        assert settings == {"spark.jars": file}
    own = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.9"
    assert packages(["kafka"], "4.2.0", spark_jars_packages=own) == [own]
    other = "org.example:thing:1"
    assert packages(["kafka"], "4.2.0", spark_jars_packages=other)[0] == other


def test_extensions_are_added_to_those_of_the_user() -> None:
    with resolved(["delta"], "4.2.0", {"spark.sql.extensions": "org.example.Mine"}) as settings:
        mine, delta = settings["spark.sql.extensions"].split(",")
    assert mine == "org.example.Mine"
    assert delta.startswith("io.delta")


def test_only_the_central_repository_is_asked_unless_the_user_names_one() -> None:
    with resolved(["kafka"], "4.2.0", {}) as settings:
        file = Path(settings["spark.jars.ivySettings"])
        assert "central" in file.read_text()
    assert not file.exists()
    with resolved(["kafka"], "4.2.0", {"spark.jars.repositories": "https://example.org"}) as mine:
        assert "spark.jars.ivySettings" not in mine


def test_sessions_that_start_together_resolve_jars_one_after_the_other() -> None:
    entered: list[str] = []

    def second() -> None:
        with resolved(["kafka", "delta"], "4.2.0", {}):
            entered.append("second")

    with resolved(["kafka"], "4.2.0", {}):
        other = threading.Thread(target=second)
        other.start()
        # One without jars to resolve waits for nobody.
        with resolved([], "4.2.0", {}):
            entered.append("without")
        entered.append("first")
    other.join(60)
    assert entered == ["without", "first", "second"]


def test_coordinates_are_well_formed() -> None:
    for connector in CONNECTORS.values():
        for spark, one in connector.packages.items():
            assert re.fullmatch(r"4\.\d", spark)
            assert re.fullmatch(r"[\w.]+:[\w.-]+:\d+\.\d+\.\d+", one)


def test_a_jar_made_for_another_spark_is_told_in_words() -> None:
    java = "java.lang.NoSuchMethodError: 'void org.apache.X.y()' at org.apache.spark.sql.delta.Z"
    assert re.search(
        r"The delta connector .* than 4\.3\.0.*NoSuchMethodError.*Spark 4\.2 .*delta-spark_4\.2",
        str(misfit(java, "4.3.0")),
    )
    java = "java.lang.IncompatibleClassChangeError: x at org.apache.iceberg.spark.SparkTable"
    assert "Spark 4.1" in str(misfit(java, "4.2.1"))
    assert "For this Spark take org.apache.iceberg:" in str(misfit(java, "4.0.1"))
    assert str(misfit("java.lang.AbstractMethodError: z", "4.2.1")).startswith("A jar in this")
    assert misfit("java.lang.RuntimeException: delta.x", "4.2.1") is None


def test_a_part_of_kafka_that_a_mirror_lacks_has_an_older_release() -> None:
    with resolved(["kafka"], "4.2.0", {}) as settings:
        tree = ElementTree.parse(settings["spark.jars.ivySettings"])
    (module,) = tree.iter("module")
    assert module.get("name") == "spark-token-provider-kafka-0-10_2.13"
    assert module.get("resolver") == next(tree.iter("chain")).get("name")
