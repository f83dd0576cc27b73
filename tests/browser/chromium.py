"""Where Chromium is."""

from __future__ import annotations

import os
import shutil

__all__ = ["chromium"]


def chromium() -> str | None:
    """Its path; None if this machine has none."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path is not None), None)
