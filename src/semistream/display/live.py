"""A display that keeps itself up to date in a notebook, as long as something goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["live_display"]


def live_display(html: Callable[[], str], is_over: Callable[[float], bool]) -> bool:
    """Show HTML in a notebook and renew it until `is_over`; False where there is no notebook.

    `is_over` waits for a moment, then says whether it was the last. It is called in a thread, so
    the notebook goes on.
    """
    try:
        # Part of every notebook; nothing else needs it.
        from IPython.display import HTML, display
    except ImportError:
        return False
    handle: Any = display(HTML(html()), display_id=True)
    if handle is None:
        return False

    def renew() -> None:
        over = False
        while not over:
            over = is_over(1.0)
            handle.update(HTML(html()))

    threading.Thread(target=renew, daemon=True).start()
    return True
