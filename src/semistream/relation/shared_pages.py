"""Shared pages: what two versions of a master table have in common, told by their indices alone.

An update writes the touched pages anew and keeps all others. A key has the same rows in both
versions if all pages that may hold it are the same pages, in the same order.

    older   | a | b | c | d |          a key on b:  nothing is certain
    newer   | a | x | y | c | d |      a key on c, or on c and d:  the same rows
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semistream.keys import Codes
from semistream.relation.master_version import MasterVersion
from semistream.relation.page_index import PageIndex

__all__ = ["same_rows"]


def same_rows(one: MasterVersion, other: MasterVersion, codes: Codes) -> NDArray[np.bool_]:
    """Which codes certainly have the same rows in two versions. O((pages + codes) log pages).

    Nothing is read. In layout "given" no code is certain: only reads would tell where it lies.
    """
    whole = not one.is_shard and not other.is_shard
    if one is other or (whole and one.manifest == other.manifest):
        return np.ones(len(codes), np.bool_)
    alike = one.stored_schema.equals(other.stored_schema) and one.key == other.key
    if not alike or one.layout != "key" or other.layout != "key" or not len(other.pages):
        return np.zeros(len(codes), np.bool_)
    place = _places(one.pages, other.pages)
    low, high = _spans(one.pages, codes)
    first, last = _spans(other.pages, codes)
    there = (first <= last) & (low <= high)
    first, last = np.where(there, first, 0), np.where(there, last, 0)
    # Pages in between are the same if no step from one to the next is another than in `one`.
    steps = np.concatenate([[0], np.cumsum(np.diff(place) != 1)])
    unbroken = steps[first] == steps[last]
    same: NDArray[np.bool_] = there & (place[first] == low) & (place[last] == high) & unbroken
    return same


def _places(one: PageIndex, other: PageIndex) -> NDArray[np.int64]:
    """For each page of `other` the number of the same page in `one`; -1 if it has none.

    A page is known by its checksum. Should `one` have several of the same content, it is any of
    them, and codes on it may count as not certain.
    """
    if not len(one):
        return np.full(len(other), -1, np.int64)
    order = np.argsort(one.checksum, kind="stable")
    at = np.minimum(np.searchsorted(one.checksum[order], other.checksum), len(one) - 1)
    place: NDArray[np.int64] = order[at]
    same = one.checksum[place] == other.checksum
    for name in ("first", "last", "length", "rows"):
        same &= getattr(one, name)[place] == getattr(other, name)
    return np.where(same, place, -1)


def _spans(pages: PageIndex, codes: Codes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last page that may hold each code; last below first if none does."""
    first = np.searchsorted(pages.last, codes, side="left")
    return first, np.searchsorted(pages.first, codes, side="right") - 1
