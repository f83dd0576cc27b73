"""The parts that semi-stream joins are composed of.

A part owns its state, takes its bytes from a named grant before it allocates them, and has a
`check()` that asserts its invariants.
"""
