"""Pipelines: every stream tuple of a source to its place in the warehouse, exactly once."""
