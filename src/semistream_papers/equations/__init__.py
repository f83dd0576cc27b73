"""The papers' equations: one module per paper, one function per equation, in its symbols.

They say what the authors' prototypes cost. What this engine costs is in `semistream.cost.model`.

Costs are in seconds where the papers have nanoseconds. The factors c_H, c_O, c_E, c_S and c_A are
`probe`, `output`, `delete`, `stream_read` and `append` of `CostFactors`; c_I/O, the read of a
partition, is an argument of its own, since it depends on the partition's size.
"""
