"""The learned file: which keys a stream keeps asking for, kept for workers that start later.

A Python worker may end at any time: Spark ends idle ones, machines fail, queries are stopped. So
the workers of a join leave the codes of the most frequent keys in a small file, now and then, and
a worker that starts reads their rows before its first tuple.

    header: JSON, one line        {"format": 1, "keys": n, "checksum": …}
    codes                         n × int64, the most frequent first
    frequencies                   n × float32

The file is a hint. Whatever is wrong with it, or old, the join gives the same rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from semistream.crash_points import reached
from semistream.parts.learned import Learned

__all__ = ["LearnedFile"]

_FORMAT: Final = 1
_MOST_KEYS: Final = 1 << 16
"""So a file has at most 800 KB."""
_MOST_HEADER: Final = 256
_BYTES_PER_KEY: Final = 12
_SECONDS: Final = 10.0
"""A file younger than this is not written again, whichever worker has written it."""


class LearnedFile:
    """The file of one join in a folder that its workers share."""

    def __init__(self, folder: str, join: object) -> None:
        """`join` says by its text which join it is; neither need exist yet."""
        name = hashlib.sha256(repr(join).encode()).hexdigest()[:16]
        self._path = Path(folder) / f"{name}.keys"

    def read(self, most: int) -> Learned:
        """The most frequent keys, as many as that; none if the file is missing or not whole."""
        try:
            with open(self._path, "rb") as file:
                header = json.loads(file.readline(_MOST_HEADER))
                keys = min(max(int(header["keys"]), 0), _MOST_KEYS)
                content = file.read(keys * _BYTES_PER_KEY)
        except (OSError, ValueError, KeyError, TypeError):
            return Learned.nothing()
        expected = (_FORMAT, xxhash.xxh3_64_hexdigest(content))
        found = (header.get("format"), header.get("checksum"))
        if found != expected or keys < 1 or len(content) != keys * _BYTES_PER_KEY:
            return Learned.nothing()
        codes = np.frombuffer(content, "<i8", keys)[:most].copy()
        frequency = np.frombuffer(content, "<f4", keys, 8 * keys)[:most].copy()
        return Learned(codes, np.nan_to_num(frequency))

    @property
    def is_due(self) -> bool:
        """Whether it should be written again."""
        try:
            return time.time() - self._path.stat().st_mtime > _SECONDS
        except OSError:
            return True

    def write(self, learned: Learned) -> None:
        """Replace the file by these keys; if that cannot be done, it is not.

        The folder is made if the folder around it exists. On another machine it does not.
        """
        learned = learned.chosen(slice(_MOST_KEYS))
        if not len(learned.codes):
            return
        content = learned.codes.tobytes() + learned.frequency.tobytes()
        header = {
            "format": _FORMAT,
            "keys": len(learned.codes),
            "checksum": xxhash.xxh3_64_hexdigest(content),
        }
        unfinished = self._path.with_suffix(f".{os.getpid()}.part")
        try:
            self._path.parent.mkdir(exist_ok=True)
            unfinished.write_bytes(json.dumps(header).encode() + b"\n" + content)
            reached("learned.hidden")
            unfinished.replace(self._path)
            reached("learned.replaced")
            self._remove_unfinished()
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()

    def _remove_unfinished(self) -> None:
        """Remove what workers left that were killed while they wrote."""
        for path in self._path.parent.glob(f"{self._path.stem}.*.part"):
            if time.time() - path.stat().st_mtime > _SECONDS:
                path.unlink(missing_ok=True)
