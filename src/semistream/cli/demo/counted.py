"""Whether the warehouse has every sale once, with the right row of the master.

The expected rows come another way: the sales are made again in this process, without Spark and
without a join, and each product is looked up by its place in the Parquet file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semistream.cli.demo.scene import KEY

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from semistream.cli.demo.events import PriceChange
    from semistream.cli.demo.scene import Scene

__all__ = ["Counted", "counted"]

_ORDER: Final = [(name, "ascending") for name in ("sold_at", KEY, "quantity")]


@dataclass(frozen=True)
class Counted:
    """What was sold, what the warehouse has, and how many rows are not as they must be."""

    sold: int
    stored: int
    wrong_sales: int
    """Rows of either side that the other does not have."""
    wrong_names: int
    wrong_prices: int
    versions: tuple[int, ...]
    """The versions of the master that batches were joined with."""

    @property
    def is_right(self) -> bool:
        """Whether each sale is there once, with its product and the price of its time."""
        wrong = self.wrong_sales + self.wrong_names + self.wrong_prices
        return wrong == 0 and self.sold == self.stored


def counted(scene: Scene, changes: Mapping[int, PriceChange]) -> Counted:
    """Compare the warehouse with sales that are made again."""
    import numpy as np
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    names = [KEY, "quantity", "sold_at", "name", "price", "batch"]
    stored = ds.dataset(scene.warehouse, partitioning="hive").to_table(names).sort_by(_ORDER)
    sold = _sold(scene).sort_by(_ORDER)
    products = pq.read_table(scene.table, columns=["name", "price"])
    ids = stored[KEY].to_numpy()
    versions = _version_of_batch(scene)[stored["batch"].to_numpy()]
    prices = _prices(products["price"].to_numpy(), ids, versions, changes)
    right = products["name"].take(stored[KEY])
    return Counted(
        sold.num_rows,
        stored.num_rows,
        _different_sales(sold, stored),
        stored.num_rows - _equal(right, stored["name"]),
        int((prices != stored["price"].to_numpy()).sum()),
        tuple(np.unique(versions).tolist()),
    )


def _sold(scene: Scene) -> pa.Table:
    """All sales of the stream."""
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from semistream.spark.sales import SALES, SalesMaker

    made = SalesMaker(scene.arrivals).read(InputPartition((0, scene.tuples)))
    return pa.Table.from_batches(made, SALES)


def _different_sales(sold: pa.Table, stored: pa.Table) -> int:
    """How many rows differ, of two tables in the same order."""
    import numpy as np
    import pyarrow as pa

    common = min(sold.num_rows, stored.num_rows)
    same = np.ones(common, bool)
    for name, _ in _ORDER:
        columns = (table[name].slice(0, common).cast(pa.int64()) for table in (sold, stored))
        one, other = (column.to_numpy() for column in columns)
        same &= one == other
    return int((~same).sum()) + abs(int(sold.num_rows - stored.num_rows))


def _equal(one: Any, other: Any) -> int:
    """How many values are equal; null is equal to nothing."""
    import pyarrow.compute as pc

    return int(pc.sum(pc.equal(one, other), min_count=0).as_py() or 0)


def _version_of_batch(scene: Scene) -> NDArray[np.int64]:
    """The master's version in each batch, by the batch's number, as the pipeline has noted it."""
    import numpy as np

    lines = map(json.loads, scene.metrics.read_text("utf-8").splitlines())
    found = {line["batch"]: line["master_version"] for line in lines}
    return np.array([found.get(number, 0) for number in range(max(found) + 1)], np.int64)


def _prices(
    first: NDArray[np.float64],
    ids: NDArray[np.int64],
    versions: NDArray[np.int64],
    changes: Mapping[int, PriceChange],
) -> NDArray[np.float64]:
    """The price of each row, in the version that its batch was joined with."""
    import numpy as np

    prices, found = first.copy(), np.full(len(ids), np.nan)
    for version in range(1, int(versions.max(initial=0)) + 1):
        if version in changes:
            changed, new = changes[version]
            prices[changed] = new
        rows = versions == version
        found[rows] = prices[ids[rows]]
    return found
