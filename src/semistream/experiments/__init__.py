"""The papers' figures, drawn again: what to run, running it, and what it shows.

`catalogue` has a record of each figure, `runner` runs its points, `claims` compares what comes out
with what the papers say, `charts` and `report` show it.
"""
