"""A master that follows its source, without Spark.

changes ──► points ──► resolved ──► book, then master
            one per    with what    the book's version is named
            change     the book     in the master's commit
                       has

A *point* is a change of a key: its sequence, and whether the key has a row from then on. The
*book* is a master table beside the master with the points that later changes are compared with.
"""

from semistream.relation.following.apply import (
    Applied,
    Changes,
    Following,
    applied,
    checked_mark,
    is_done,
    tidied,
)
from semistream.relation.following.freshness import (
    Progress,
    as_of,
    check_fresh,
    followed_as_of,
    note_fresh,
    progress,
)

__all__ = [
    "Applied",
    "Changes",
    "Following",
    "Progress",
    "applied",
    "as_of",
    "check_fresh",
    "checked_mark",
    "followed_as_of",
    "is_done",
    "note_fresh",
    "progress",
    "tidied",
]
