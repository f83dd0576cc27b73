"""Removal of versions that a frequent writer has made, once they are old."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from datetime import datetime

from semistream.errors import SemistreamError
from semistream.relation.master_table import MasterTable

__all__ = ["tidy"]


def tidy(table: MasterTable, made_by: str, keep: float, pinned: Iterable[int] = ()) -> None:
    """Remove versions older than `keep` seconds that operations of this name have made.

    What is left now, the next vacuum removes.
    """
    old = time.time() - keep
    with contextlib.suppress(OSError, SemistreamError):
        kept = {
            one.version
            for one in table.history()
            if not one.operation.startswith(made_by)
            or datetime.fromisoformat(one.created).timestamp() > old
        }
        table.vacuum(pinned=[*kept, *pinned], grace_seconds=max(keep, 3600.0))
