"""Workloads: seeded streams and master data for demos, tests and benchmarks.

The papers drive every join with a Zipf-distributed stream, because a few keys of a real
stream are asked for again and again. `ZipfKeys` draws such keys, `scattered` takes the hot
ones apart so that they do not share pages by accident, and `products` and `sales` dress
them as a master table and its stream. The same seed gives the same rows.
"""

from semistream.workload.bursty import BurstySteps, hurst_exponent
from semistream.workload.locality import LocalKeys
from semistream.workload.retail import products, sales
from semistream.workload.synthetic import KeyedTuples, master_rows
from semistream.workload.weather import StationKeys, weather_reports
from semistream.workload.zipf import ZipfKeys, scattered, zipf_rows

__all__ = [
    "BurstySteps",
    "KeyedTuples",
    "LocalKeys",
    "StationKeys",
    "ZipfKeys",
    "hurst_exponent",
    "master_rows",
    "products",
    "sales",
    "scattered",
    "weather_reports",
    "zipf_rows",
]
