"""semistream on Spark: building master tables, joining DataFrames, the workload as a source.

Nothing is imported here, so that a Python worker loads only the module its task is in.
"""
