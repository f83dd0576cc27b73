"""Settings that name variables of the environment, so that a password is in no file and no plan.

"postgresql://${DB_USER}:${DB_PASSWORD}@db.example/shop"
"""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import quote

from semistream.errors import OptionError

__all__ = ["filled", "filled_url"]

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


def filled(text: str) -> str:
    """The text with the values of the variables that it names as `${NAME}`."""
    return _VARIABLE.sub(_value, text)


def filled_url(text: str) -> str:
    """A URL with the values of its variables.

    A variable that stands for all of it has a URL; the others have plain values, which need no
    quoting: a password may have any characters.
    """
    if _VARIABLE.fullmatch(text):
        return filled(text)
    return _VARIABLE.sub(lambda found: quote(_value(found), safe=""), text)


def _value(found: re.Match[str]) -> str:
    name = found[1]
    if name not in os.environ:
        raise OptionError(
            f"A setting names ${{{name}}}, but the environment has no variable {name}. Set it, and "
            "start again."
        )
    return os.environ[name]
