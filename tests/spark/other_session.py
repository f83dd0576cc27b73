"""Scripts that need a Spark session of another kind than the tests', in a process of their own.

Classic and Connect sessions do not mix in a process. Starting one takes longer than most scripts,
so the scripts of one kind share it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

CONNECT: Final = """
import semistream as ss
from pyspark.sql import SparkSession

builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.default.parallelism", "1")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
spark = builder.config("spark.connect.grpc.binding.address", "127.0.0.1").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "2")
"""
FAILING: Final = """
import os
import semistream as ss
from pyspark.sql import SparkSession
from semistream.spark.building import job

spark = (
    SparkSession.builder.master("local[2,3]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "3")
    .config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    .getOrCreate()
)
real = job.WriteTask
"""
"""A task is tried three times, and tests let it die."""

_ANSWER: Final = "ANSWER "
_LOOP: Final = """
import json, sys, traceback

shared = {"__name__": "__main__"}
exec(json.loads(sys.stdin.readline()), shared)
for line in sys.stdin:
    script, arguments = json.loads(line)
    names = shared | {"arguments": arguments, "answer": None}
    try:
        exec(script, names)
        told = {"answer": names["answer"]}
    except BaseException:
        told = {"error": traceback.format_exc()}
    print("\\nANSWER " + json.dumps(told), flush=True)
shared["spark"].stop()
"""


class OtherSession:
    """A process with a Spark session, which runs scripts one after the other."""

    def __init__(self, setup: str, log: Path) -> None:
        """`setup` makes the session, as `spark`; what the process complains of goes to `log`."""
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # A Connect server takes a free port, so that two of them can run at a time.
            "SPARK_TESTING": "1",
        }
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LOOP],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._send(setup)

    def run(self, script: str, *arguments: object) -> Any:
        """What the script leaves in `answer`; it has `spark`, `ss` and `arguments`, as texts."""
        self._send([script, [str(argument) for argument in arguments]])
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                told = json.loads(line.removeprefix(_ANSWER))
                assert "error" not in told, told["error"]
                return told["answer"]
        raise AssertionError(f"The process has ended:\n{self._log.read_text()[-5000:]}")

    def close(self) -> None:
        """End it, the session too."""
        self._process.communicate(timeout=60)

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
