"""Workloads: seeded streams and master data for demos, tests and benchmarks.

The papers drive every join with a Zipf-distributed stream, because a few keys of a real
stream are asked for again and again. `ZipfKeys` draws such keys, `scattered` takes the hot
ones apart so that they do not share pages by accident, and `products` and `sales` dress
them as a master table and its stream. The same seed gives the same rows.
"""

from semistream.workload.retail import products, sales
from semistream.workload.zipf import ZipfKeys, scattered

__all__ = ["ZipfKeys", "products", "sales", "scattered"]
