"""A server of the S3 protocol in a process of its own; each request can be made slower."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.services.service import LOOPBACK, Service, listens


class S3(Service):
    """Buckets in memory; any key and secret are good."""

    name = "s3"

    def __init__(self, folder: Path, latency: float = 0.0) -> None:
        super().__init__(folder)
        self._latency = latency

    def prepare(self) -> None:
        """Nothing: it starts empty."""

    def command(self) -> Sequence[str]:
        """The program beside this module."""
        return [
            sys.executable,
            str(Path(__file__).with_name("s3_server.py")),
            str(self.port),
            str(self._latency),
        ]

    def answers(self) -> bool:
        """Whether it accepts connections."""
        return listens(self.port)

    def environment(self) -> dict[str, str]:
        """The endpoint."""
        return {"SEMISTREAM_TEST_S3": f"{LOOPBACK}:{self.port}"}
