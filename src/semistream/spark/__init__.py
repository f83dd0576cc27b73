"""semistream on Spark, in rooms.

    building/   master tables from Spark DataFrames
    shards/     a join with a master table in shards
    pipeline/   source → join → warehouse, exactly once
    join        `ss.join`, and `worker`, which runs it in Spark's Python workers
    session     a local Spark session; `source`: the workload as a Spark data source

An import-linter contract for each room says what it may import. The packages import nothing
themselves, so that a Python worker loads only the modules its task needs.
"""
