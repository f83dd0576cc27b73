"""The masters of a pipeline: the version of the last batch, those that are there, and their age."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from semistream.errors import SemistreamError
from semistream.relation import MasterTable
from semistream.relation.following.freshness import as_of

__all__ = ["Masters"]

_SHOWN: Final = 12
"""Versions of a history that are shown, the newest."""
_EVERY: Final = 5.0
"""A history is read again after so many seconds: that takes a file per version."""


class Masters:
    """Looks at masters where a pipeline says they are."""

    def __init__(self) -> None:
        """Nothing is looked at yet."""
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    def told(
        self, places: Mapping[str, str], versions: Mapping[str, int | None]
    ) -> list[dict[str, Any]]:
        """All masters, with the versions of the last batch."""
        return [
            {"name": name, "version": versions.get(name), **self._looked(place, versions.get(name))}
            for name, place in places.items()
        ]

    def _looked(self, place: str, version: int | None) -> dict[str, Any]:
        at, found = self._known.get(place, (-_EVERY, {}))
        if time.monotonic() - at >= _EVERY:
            found = _history(place)
            self._known[place] = time.monotonic(), found
        newest = found.get("newest")
        behind = None if newest is None or version is None else max(newest - version, 0)
        made_at = found.get("as_of")
        age = None if made_at is None else max(time.time() - made_at, 0.0)
        return {"place": place, "behind": behind, "age_seconds": age, **found}


def _history(place: str) -> dict[str, Any]:
    try:
        master = MasterTable.open(place)
        shown = [asdict(one) for one in master.history()[-_SHOWN:]]
        return {
            "newest": master.version,
            "rows": master.row_count,
            "pages": master.page_count,
            "bytes": int(master.pages.length.sum()),
            "as_of": as_of(place),
            "history": shown[::-1],
        }
    except (SemistreamError, OSError) as error:
        return {"error": str(error)}
