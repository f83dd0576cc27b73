"""The algorithms by name, and what the engine needs of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import pyarrow as pa

from semistream.algorithms.assembly import Buildable
from semistream.algorithms.chybridjoin import CHYBRIDJOIN
from semistream.algorithms.cinlj import CINLJ
from semistream.algorithms.cmeshjoin import CMESHJOIN
from semistream.algorithms.demandjoin import DemandJoin
from semistream.algorithms.hybridjoin import HybridJoin
from semistream.algorithms.inlj import IndexNestedLoopJoin
from semistream.algorithms.meshjoin import MeshJoin
from semistream.algorithms.oxhybridjoin import OptimisedXHybridJoin
from semistream.algorithms.rmeshjoin import RMeshJoin
from semistream.algorithms.sizing import Needs
from semistream.algorithms.xhybridjoin import XHybridJoin
from semistream.errors import UnknownAlgorithmError
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.stream_buffer import TupleSource


class _Sized(Protocol):
    def __len__(self) -> int: ...


class Algorithm(Protocol):
    """What the engine needs of an algorithm."""

    stream: TupleSource
    disk: DiskBuffer

    @property
    def waiting(self) -> _Sized:
        """The stream tuples that have been read and are not finished."""

    def step(self) -> Iterator[pa.RecordBatch]:
        """One iteration of the paper's loop, yielding output as it comes."""

    def check(self) -> None:
        """Assert the invariants of the parts."""


BY_NAME: dict[str, Buildable[Algorithm]] = {
    "inlj": IndexNestedLoopJoin,
    "meshjoin": MeshJoin,
    "rmeshjoin": RMeshJoin,
    "hybridjoin": HybridJoin,
    "xhybridjoin": XHybridJoin,
    "oxhybridjoin": OptimisedXHybridJoin,
    "cinlj": CINLJ,
    "cmeshjoin": CMESHJOIN,
    "chybridjoin": CHYBRIDJOIN,
    "demandjoin": DemandJoin,
}

ALGORITHMS: tuple[str, ...] = tuple(BY_NAME)
"""The names that `engine` knows."""
AUTO: Final = "auto"
"""The name that leaves the choice to the cost model."""


def needs_of(algorithm: object) -> Needs:
    """What an algorithm asks of the budget; raises for a name that is not known."""
    if not isinstance(algorithm, str) or algorithm not in BY_NAME:
        raise UnknownAlgorithmError(
            f"algorithm={algorithm!r} is not known. Choose one of: {', '.join(ALGORITHMS)}, or "
            '"auto".'
        )
    return BY_NAME[algorithm].needs
