"""What a pipeline says of itself in its checkpoint, for whoever looks at it from outside.

    checkpoint/semistream/about.json     written when it starts, and when it ends

The pipeline never reads it, so a checkpoint without it, or with a broken one, is as good.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from semistream.relation.storage import Location, inside, storage_at
from semistream.spark.pipeline.folders import Folder

__all__ = ["About", "read_about", "write_about"]

_NAME: Final = "about.json"


@dataclass(frozen=True)
class About:
    """A pipeline, and how its last run ended."""

    name: str
    masters: Mapping[str, str] = field(default_factory=dict)
    """Where each master is, without passwords; a single one has the name ""."""
    memory: int | None = None
    io: str = "buffered"
    metrics: str | None = None
    """The file with a JSON line per batch."""
    batch_target: float | None = None
    trigger: float | None = None
    """Seconds between batches; None if each follows the last at once."""
    once: bool = False
    """Whether it ends with what its source has."""
    started: str = ""
    state: str = "running"
    """"running", "finished", "stopped" or "failed"."""
    error: str | None = None


def write_about(home: Folder, about: About) -> None:
    """Write it; that it cannot be written is no reason to stop a pipeline."""
    data = json.dumps(asdict(about)).encode()
    place = f"{home.path}/{_NAME}"
    with contextlib.suppress(OSError):
        if home.local is None:
            with home.filesystem.open_output_stream(place) as file:
                file.write(data)
            return
        with home.filesystem.open_output_stream(f"{place}.part") as file:
            file.write(data)
        home.filesystem.move(f"{place}.part", place)


def read_about(checkpoint: Location) -> About | None:
    """What the pipeline of a checkpoint has said; None if it has not, or cannot be understood."""
    known = {one.name for one in fields(About)}
    with contextlib.suppress(OSError, ValueError, TypeError):
        found: dict[str, Any] = json.loads(storage_at(inside(checkpoint, "semistream")).read(_NAME))
        return About(**{name: value for name, value in found.items() if name in known})
    return None
