"""Stars: one stream joined with several master tables in one operator.

    round of tuples ─► key columns, row numbers ─► engine of look-up 1 ─► numbers, found rows
                                                          …                    │
                       key columns, row numbers ─► engine of look-up n ─► numbers, found rows
                                                                               │
    stream columns ───────────────────────────────────────────────────────► results

An engine gets a row number, the key columns of its look-up and those that its conditions name,
nothing else. So what one look-up has found is not copied through the next. The columns are put
side by side at the end of a round.
"""
