"""Figures: a record for each figure of the papers, and the lines that are drawn of it."""
