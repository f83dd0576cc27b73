"""Joins by other conditions than equality, on MESHJOIN's scan (Polyzotis et al. 2007, §3.3).

Nothing of R is looked up by key: every waiting tuple meets every row of R. What differs from one
condition to the next is how the pairs are found without comparing all of them.

    S ─► window: waiting tuples, in order ─┐
                                           ├─► matcher ─► pairs, so many at a time ─► output
    R ─► blocks: kept in memory, or read ──┘

A window of stream tuples waits, R goes by once, and the window is done. If the columns of R that
are needed fit the budget, they are read once and kept; otherwise each window reads R again, so
windows are as large as the memory allows.
"""
