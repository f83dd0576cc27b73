"""Versions of a master table: the manifest that makes one, the draft before it, and the removal.

A version exists once its manifest does. The modules here know names and sizes of files, not rows.
"""
