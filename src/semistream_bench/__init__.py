"""`semistream bench`: ss.join beside what a user could pick instead, on the same data in one run.

    shop ──► ways ──► warm: whole triggers on Spark, in turns ─────────┐
      │               memory: one way after the other, fresh workers ──┼──► report: table, chart,
      └─────────────► cold: tasks without Spark, nothing in memory ────┘            JSON lines

`peers` are joins by hand with LMDB, RocksDB and DuckDB. The library does not know of this package.
"""
