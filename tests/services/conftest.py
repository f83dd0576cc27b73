"""Where the services are. A test that needs one which does not run fails: it never skips."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec


def where(name: str) -> str:
    """Where a service is; the test fails if it does not run."""
    found = os.environ.get(f"SEMISTREAM_TEST_{name}")
    if found is None:
        pytest.fail(f"{name} does not run. Run these tests with: make services-test")
    return found


class Topics:
    """Topics of one broker."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._admin = AdminClient({"bootstrap.servers": server})

    def new(self, partitions: int = 2, name: str = "", **settings: str) -> str:
        """A topic of its own; settings have underscores for dots."""
        name = name or f"sales-{uuid4().hex[:8]}"
        self.make(name, partitions, **settings)
        return name

    def make(self, name: str, partitions: int = 1, **settings: str) -> None:
        """Make a topic of this name."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        made = self._admin.create_topics([NewTopic(name, partitions, 1, config=config)])
        made[name].result(60)

    def end(self, topic: str) -> int:
        """The offset that the next record of partition 0 gets."""
        place = TopicPartition(topic, 0)
        found = self._admin.list_offsets({place: OffsetSpec.latest()})[place].result(60)
        return int(found.offset)

    def remove_before(self, topic: str, offset: int) -> None:
        """Remove the records of partition 0 before an offset, as the retention time does."""
        place = TopicPartition(topic, 0, offset)
        self._admin.delete_records([place])[place].result(60)

    def delete(self, name: str) -> None:
        """Remove a topic."""
        self._admin.delete_topics([name])[name].result(60)

    def send(self, topic: str, records: Sequence[bytes | None], keys: Sequence[bytes] = ()) -> None:
        """Send records and wait until the broker has them."""
        producer = Producer({"bootstrap.servers": self.server, "linger.ms": 20})
        for number, record in enumerate(records):
            producer.produce(topic, record, keys[number] if keys else None)
            if number % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0

    def read(self, topic: str) -> list[Message]:
        """All records that a topic has now."""
        settings = {"bootstrap.servers": self.server, "group.id": uuid4().hex}
        consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
        found = []
        try:
            parts = [
                TopicPartition(topic, n)
                for n in consumer.list_topics(topic).topics[topic].partitions
            ]
            left = 0
            for part in parts:
                first, last = consumer.get_watermark_offsets(part, timeout=30)
                part.offset = first
                left += last - first
            consumer.assign(parts)
            while left:
                message = consumer.poll(30)
                assert message is not None, f"{left} records of {topic} did not come"
                assert message.error() is None, message.error()
                found.append(message)
                left -= 1
        finally:
            consumer.close()
        return found


@pytest.fixture(scope="session")
def topics() -> Topics:
    """The broker."""
    return Topics(where("KAFKA"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed after the test: warehouses are large."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


Maker = Callable[[], str]
