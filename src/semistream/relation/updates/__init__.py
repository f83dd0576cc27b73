"""Updates: from one version of a master table and a change to the next version.

change ──► placement ──► rewrite ──► relocation ──► update
which keys   where the     new pages   the new        index, filter,
and rows     rows go                   locator        and the commit
"""
