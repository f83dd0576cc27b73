"""Pictures and tables for people: SVG and HTML for notebooks, characters for terminals.

Nothing here knows what it shows. It needs no library, and no script runs in a notebook.
"""
