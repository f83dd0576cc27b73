"""Runs: one point of a figure as parameters, how it is run, and what is kept of it."""
