"""What happens while the stream runs: prices change, and a Python worker is killed.

It happens in a thread of its own, so that the display goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from semistream.cli.demo.workers import failed_tasks, kill_busy_worker, retries

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from semistream.cli.demo.scene import Products

__all__ = ["POPULAR", "Events", "PriceChange"]

POPULAR: Final = 200
"""How many prices change at a time: those of the products that sell best."""
_PATIENCE: Final = 6.0
"""The most seconds to wait for a worker at work."""
_NOTICED: Final = 1.0
"""Within this time Spark notices a task that is lost."""
_KILLS: Final = 5
"""The most workers to kill: one may just have ended its task, and then nothing is lost with it."""

PriceChange = tuple["NDArray[np.int64]", "NDArray[np.float64]"]
"""Products, and what they cost from a version on."""


class Events:
    """Runs each event once, when its share of the stream's time has passed."""

    def __init__(
        self,
        spark: SparkSession,
        products: Products,
        seconds: float,
        say: Callable[[str], None],
    ) -> None:
        """Nothing happens before the first `tick`."""
        self._spark, self._products, self._say = spark, products, say
        self._due = [(0.2, self._reprice), (0.4, self._reprice), (0.55, self._kill)]
        self._seconds = seconds
        self._began = time.monotonic()
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semistream-demo")
        self._running: list[Future[None]] = []
        self.changes: dict[int, PriceChange] = {}
        """The prices that a version of the master has changed."""
        self.killed: list[int] = []
        """The processes that were killed."""

    def tick(self) -> None:
        """Begin what is due; raises what went wrong in an event that is over."""
        passed = time.monotonic() - self._began
        while self._due and passed >= self._due[0][0] * self._seconds:
            self._running.append(self._thread.submit(self._due.pop(0)[1]))
        for one in self._running:
            if one.done():
                one.result()

    @property
    def are_over(self) -> bool:
        """Whether all have happened."""
        return not self._due and all(one.done() for one in self._running)

    def close(self) -> None:
        """Begin nothing more, and wait for what runs."""
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)

    def _reprice(self) -> None:
        """All popular products become a tenth dearer: the next version of the master."""
        import numpy as np
        import pyarrow as pa

        popular, began = self._products.popular, time.perf_counter()
        prices = np.round(popular["price"].to_numpy() * 1.1, 2)
        column = popular.schema.get_field_index("price")
        popular = popular.set_column(column, popular.schema.field(column), pa.array(prices))
        master = self._products.master.upsert(popular)
        self._products.master, self._products.popular = master, popular
        self.changes[master.version] = (popular["product_id"].to_numpy(), prices)
        self._say(
            f"{len(prices):,} new prices in the master: version {master.version}, "
            f"in {time.perf_counter() - began:.1f} s"
        )

    def _kill(self) -> None:
        """Kill a worker at work, and see that Spark has lost a task by that."""
        if not retries(self._spark):
            self._say("no worker is killed: this Spark gives up when a task fails once")
            return
        for _ in range(_KILLS):
            lost = failed_tasks(self._spark)
            killed = kill_busy_worker(self._spark, _PATIENCE)
            if killed is None or self._stopped.is_set():
                break
            self.killed.append(killed)
            if self._has_lost(lost):
                self._say(f"kill -9 {killed}, a Python worker: Spark runs its task again")
                return
            self._say(f"kill -9 {killed}, a Python worker between two tasks")
        if not self.killed:
            self._say("no worker was killed: none of this process was found at work")

    def _has_lost(self, before: int) -> bool:
        """Whether Spark notices within some time that a task has failed."""
        end = time.monotonic() + _NOTICED
        while failed_tasks(self._spark) == before:
            if time.monotonic() >= end or self._stopped.wait(0.05):
                return False
        return True
