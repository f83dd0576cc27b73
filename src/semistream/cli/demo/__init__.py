"""`semistream demo`: all of it on Spark, on this machine, with made-up sales.

    products ─► master table ─┐       ◄─ prices change, a worker is killed
    bursty sales ─────────────┴─► pipeline ─► Parquet warehouse ─► counted again

Then the same join with Spark's own means, and both as bars.
"""

from semistream.cli.demo.command import demo

__all__ = ["demo"]
