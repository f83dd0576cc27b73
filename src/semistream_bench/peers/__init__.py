"""What a user could write by hand inside `mapInArrow` instead of ss.join, each with its own store.

A peer is a module with `build`, which writes all of R into its store, and a class of look-ups whose
objects Spark ships to its Python workers. They are called with a task's batches. Spark keeps the
modules that a worker has imported, so an open store waits in its module from task to task.
"""
