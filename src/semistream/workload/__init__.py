"""Workloads: seeded streams and master data for demos, tests and benchmarks.

The papers drive every join with a Zipf-distributed stream, because a few keys of a real stream
come again and again. `ZipfKeys` draws such keys. `scattered` spreads the frequent ones over the
domain, so that they do not share pages by accident. `products` and `sales` make a master table and
a stream of them. The same seed gives the same rows.
"""

from semistream.workload.retail import products, sales
from semistream.workload.zipf import ZipfKeys, scattered

__all__ = ["ZipfKeys", "products", "sales", "scattered"]
