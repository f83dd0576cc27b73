"""What sinks say of mistakes, and that they keep secrets; no service is asked."""

from __future__ import annotations

import pytest

import semistream as ss
from semistream.environment import filled, filled_url
from semistream.errors import OptionError
from semistream.spark.pipeline.kafka_source import KafkaSource, check_answers, explained_by_kafka

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def test_variables_of_the_environment_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "a/b @")
    monkeypatch.setenv("WHOLE", "postgresql://u:p%40@h/d")
    assert filled("x ${ONE} y") == "x a/b @ y"
    assert filled_url("postgresql://u:${ONE}@h/d") == "postgresql://u:a%2Fb%20%40@h/d"
    assert filled_url("${WHOLE}") == "postgresql://u:p%40@h/d"
    with pytest.raises(OptionError, match="no variable TWO"):
        filled("${TWO}")


def test_sinks_show_no_secrets() -> None:
    shown = [
        repr(ss.DatabaseSink("t", "postgresql://u:geheim@h/d")),
        repr(ss.KafkaSink("t", options={**SERVERS, "kafka.sasl.jaas.config": "geheim"})),
        repr(ss.IcebergSink("t", {"key": "geheim"})),
    ]
    assert not any("geheim" in text for text in shown)


def test_a_table_of_iceberg_has_a_sink_of_its_own() -> None:
    with pytest.raises(OptionError, match=r"Use ss.IcebergSink"):
        ss.TableSink("lake.sales", format="iceberg")


def test_a_topic_needs_a_server_and_the_columns_of_its_key() -> None:
    with pytest.raises(OptionError, match="has no server"):
        ss.KafkaSink("t")
    with pytest.raises(OptionError, match="no column b for their key; they have a"):
        ss.KafkaSink("t", ["a", "b"], SERVERS).check(["a"])


KAFKA = [KafkaSource("h:1", "a, b")]
CASES = {
    "UnknownTopicOrPartitionException: This server does not host": "the topics a, b of h:1",
    "may have been lost because they are not available in Kafka any more;\\n"
    "Reason: Partition my-topic-0 offset was changed from 7 to 3.": "of the topic my-topic that",
    "Topic out not present in metadata after 5000 ms.": "to the topic out, which does not exist",
    "org.apache.kafka.common.errors.SaslAuthenticationException: bad": "Mend user, password",
    "org.apache.kafka.common.errors.TimeoutException: Timed out.": "does not answer the pipeline p",
}


@pytest.mark.parametrize("raised", CASES)
def test_errors_of_kafka_say_what_to_do(raised: str) -> None:
    said = str(explained_by_kafka(ValueError(raised), "p", KAFKA))
    assert CASES[raised] in said
    assert "\n" not in said


def test_other_errors_are_not_kafkas() -> None:
    assert explained_by_kafka(ValueError("TimeoutException"), "p", KAFKA) is None


def test_a_broker_that_does_not_answer_is_named() -> None:
    with pytest.raises(
        Exception, match=r"No Kafka broker answers at 127\.0\.0\.1:1, where the topic a"
    ):
        check_answers([KafkaSource("127.0.0.1:1", "a")])
