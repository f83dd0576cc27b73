"""The semi-stream joins, one module per algorithm, and the engine that drives them.

Every algorithm is a choice of the same parts: MESHJOIN scans the master in a circle, HYBRIDJOIN
reads what the oldest waiting tuple needs, the X-HYBRIDJOINs keep a part of the master in
memory, INLJ has only the index.
"""

from semistream.algorithms.engine import Engine, fixed_engine
from semistream.algorithms.registry import ALGORITHMS

__all__ = ["ALGORITHMS", "Engine", "fixed_engine"]
