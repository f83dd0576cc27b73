"""The script that starts the services, as a command of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.services.service import listens

ROOT = Path(__file__).parents[2]


def test_a_signal_ends_the_services_and_the_command(tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = f"echo $$ $SEMISTREAM_TEST_S3 > {told}.new && mv {told}.new {told}; exec sleep 600"
    order = [
        sys.executable,
        "-m",
        "tests.services",
        "run",
        "--only",
        "s3",
        "--",
        "sh",
        "-c",
        script,
    ]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(order, cwd=ROOT, env=environment) as process:
        while not told.exists():
            assert process.poll() is None, "it ended before the command began"
            time.sleep(0.05)
        pid, place = told.read_text().split()
        port = int(place.rpartition(":")[2])
        assert listens(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not listens(port)
    assert not Path(f"/proc/{pid}").exists()
    assert not list(tmp_path.glob("semistream-services-*")), "its folder is left"
