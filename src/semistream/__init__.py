"""semistream: join a fast stream with master data far larger than memory."""

from semistream import errors
from semistream.algorithms import ALGORITHMS, Engine, engine
from semistream.errors import SemistreamError
from semistream.metrics import Metrics
from semistream.parts.shedding import Shedding
from semistream.plan import JoinPlan
from semistream.relation import MasterTable

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "Engine",
    "JoinPlan",
    "MasterTable",
    "Metrics",
    "SemistreamError",
    "Shedding",
    "engine",
    "errors",
]
