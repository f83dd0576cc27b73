"""The engine of a look-up that asks for more than equal keys."""

from __future__ import annotations

import time
from typing import Any

from semistream.algorithms.engine import Engine, fixed_engine
from semistream.algorithms.registry import AUTO
from semistream.cost.auto import ADAPTIVE
from semistream.cost.micro_batches import micro_batch_engine
from semistream.matching.engine import MatchingEngine
from semistream.metrics import Clock
from semistream.star.shape import LookupShape

__all__ = ["term_engine"]


def term_engine(one: LookupShape, memory: int, clock: Clock = time.perf_counter) -> MatchingEngine:
    """An inner join of row numbers, keys and the columns that conditions need."""
    lookup = one.lookup

    def made(algorithm: str, on: dict[str, str], columns: list[str], memory: int) -> Engine:
        terms: dict[str, Any] = lookup.terms() | {"on": on, "columns": columns, "memory": memory}
        terms |= {"clock": clock, "algorithm": algorithm}
        if algorithm != AUTO:
            return fixed_engine(lookup.master, **terms)
        del terms["algorithm"]
        return micro_batch_engine(lookup.master, **terms)

    return MatchingEngine(
        lookup.master,
        one.asked,
        made,
        algorithm=lookup.algorithm,
        on=one.on,
        memory=memory,
        columns=lookup.columns,
        clock=clock,
        chosen_from=(ADAPTIVE,),
    )
