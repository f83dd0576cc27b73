"""A master that follows its source: changes of any source become versions of a master table.

changes ──► formats ──► the last of each key ──► following (see `semistream.relation`)
of some     key, row,   one Spark job            │
source      sequence,                            └► rebuild, if they are very many
            delete?
"""
