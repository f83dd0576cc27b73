"""The papers' figures, drawn again: what to run, running it, and what it shows.

A package of its own beside `semistream`, which does not import it. It adds `reproduce` to the
command `semistream` (see `cli`).

    equations    the papers' cost equations
    workloads    their master data and streams
    runs         one point of a figure: its parameters, its run, its stored result
    figures      a record of each figure, and the lines that are drawn of it
    claims       the papers' numbers beside ours, with a verdict on each
    report       charts, the HTML report and docs/reproduction.md
"""
