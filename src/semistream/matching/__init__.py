"""Which of a tuple's master rows count, and in which order results come: a layer above any engine.

An engine finds the pairs of a stream tuple and a master row with equal keys. What else a join may
ask is settled here, in the same way for every algorithm: a condition (`where`), history (`valid`,
`as_of`), "semi" and "anti", and results in stream order.

    stream ─► round of tuples ─┬─► key, number ─► engine ─► pairs ─► time, condition ─┐
                               └─► held ──────────────────────────► rows, in order ◄──┘

A round is as many tuples as fit the memory set apart for it. The engine joins it to its end, so
then all pairs of its tuples are known. Only the columns that the pairs need go through the engine;
the others are taken from the held tuples by their number.
"""
