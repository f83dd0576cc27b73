"""semistream: join a fast stream with master data far larger than memory.

Names that need Spark are imported when they are first used, so that the engine alone does not
load it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from semistream import errors
from semistream.algorithms import ALGORITHMS, Engine, engine
from semistream.cost.dynamic import TunedEngine
from semistream.cost.planning import plan
from semistream.cost.skew import Skew
from semistream.errors import SemistreamError
from semistream.metrics import Metrics
from semistream.parts.shedding import Shedding
from semistream.plan import JoinPlan
from semistream.relation import MasterTable

if TYPE_CHECKING:
    from semistream.spark.join import join
    from semistream.spark.pipeline.batch_log import pinned_versions
    from semistream.spark.pipeline.listener import MetricsListener
    from semistream.spark.pipeline.pipeline import Pipeline, Status
    from semistream.spark.pipeline.routes import Retry
    from semistream.spark.pipeline.sinks import ParquetSink, TableSink
    from semistream.spark.session import local_session
    from semistream.spark.source import register_source

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "Engine",
    "JoinPlan",
    "MasterTable",
    "Metrics",
    "MetricsListener",
    "ParquetSink",
    "Pipeline",
    "Retry",
    "SemistreamError",
    "Shedding",
    "Skew",
    "Status",
    "TableSink",
    "TunedEngine",
    "engine",
    "errors",
    "join",
    "local_session",
    "pinned_versions",
    "plan",
    "register_source",
]

_ON_SPARK = {
    "MetricsListener": "semistream.spark.pipeline.listener",
    "ParquetSink": "semistream.spark.pipeline.sinks",
    "Pipeline": "semistream.spark.pipeline.pipeline",
    "Retry": "semistream.spark.pipeline.routes",
    "Status": "semistream.spark.pipeline.pipeline",
    "TableSink": "semistream.spark.pipeline.sinks",
    "pinned_versions": "semistream.spark.pipeline.batch_log",
    "join": "semistream.spark.join",
    "local_session": "semistream.spark.session",
    "register_source": "semistream.spark.source",
}


def __getattr__(name: str) -> Any:
    if name in _ON_SPARK:
        return getattr(import_module(_ON_SPARK[name]), name)
    raise AttributeError(f"module 'semistream' has no attribute {name!r}")
