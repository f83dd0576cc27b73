"""One Kafka broker that is its own controller, from the jars that Maven resolves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.services.jars import jars
from tests.services.service import LOOPBACK, Service, free_port, listens, program

_CLUSTER: Final = "c2VtaXN0cmVhbS10ZXN0cw"
"""Any name of 16 bytes, in base 64."""


class Kafka(Service):
    """A broker with automatic topics off, so that a topic that is missing is seen."""

    name = "kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._controller = free_port()

    def prepare(self) -> None:
        """Write the settings and format the log folder."""
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{LOOPBACK}:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port},CONTROLLER://{LOOPBACK}:{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 2 << 20,
            "log.cleaner.backoff.ms": 200,
        }
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        (self.folder / "settings").write_text("".join(lines))
        tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c"]
        self.run(*self._java, *tool, str(self.folder / "settings"))

    def command(self) -> Sequence[str]:
        """The broker."""
        return [*self._java, "kafka.Kafka", str(self.folder / "settings")]

    def answers(self) -> bool:
        """Whether it accepts connections; a client then waits until it has a leader."""
        return listens(self.port)

    def environment(self) -> dict[str, str]:
        """The bootstrap server."""
        return {"SEMISTREAM_TEST_KAFKA": f"{LOOPBACK}:{self.port}"}

    @property
    def _java(self) -> list[str]:
        return [program("java"), "-Xmx384m", "-cp", f"{jars('broker')}/*"]
