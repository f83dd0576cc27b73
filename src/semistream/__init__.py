"""semistream: join a fast stream with master data far larger than memory.

Names that need Spark are imported when they are first used, so that the engine alone does not
load it.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from semistream import errors
from semistream.algorithms import ALGORITHMS, Engine
from semistream.api import engine
from semistream.cost.factors import CostFactors
from semistream.cost.planning import plan
from semistream.cost.priced_clock import PricedClock
from semistream.cost.retuning import Retuning
from semistream.cost.skew import Skew
from semistream.cost.skew_estimate import SkewEstimate, estimate_skew
from semistream.errors import BudgetError, HistoryError, OptionError, SemistreamError
from semistream.estimates import Estimate, Estimates, estimate
from semistream.metrics import Durations, Metrics
from semistream.parts.join_shape import JoinShape
from semistream.parts.shedding import Shedding
from semistream.plan import Expectation, JoinPlan
from semistream.rate_curve import RateCurve
from semistream.relation import DatabaseMaster, MasterTable, Vacuumed, VersionInfo
from semistream.relation.build_progress import BuildProgress
from semistream.relation.key_table import key_table
from semistream.sampling import Sample
from semistream.scanning.conditions import (
    Condition,
    above,
    at_least,
    at_most,
    below,
    between,
    similar,
)
from semistream.star.engine import StarEngine, star_engine
from semistream.star.lookup import Lookup
from semistream.star.plan import LookupShare, StarPlan
from semistream.star.rounds import StarMetrics

if TYPE_CHECKING:
    from semistream.spark.join import join
    from semistream.spark.pipeline.batch_log import Counts, pinned_versions
    from semistream.spark.pipeline.database_sink import DatabaseSink
    from semistream.spark.pipeline.iceberg_sink import IcebergSink
    from semistream.spark.pipeline.kafka_sink import KafkaSink
    from semistream.spark.pipeline.listener import MetricsListener
    from semistream.spark.pipeline.pipeline import Pipeline, Status
    from semistream.spark.pipeline.routes import Retry
    from semistream.spark.pipeline.sinks import ParquetSink, TableSink
    from semistream.spark.records import parsed
    from semistream.spark.session import local_session
    from semistream.spark.source import register_source
    from semistream.spark.star import join_star
    from semistream.spark.sync.sync import Sync, SyncStatus
    from semistream.spark.transformations.changes import split_new
    from semistream.spark.transformations.dimensions import load_dimension
    from semistream.spark.transformations.duplicates import deduplicate
    from semistream.spark.transformations.surrogates import surrogate_keys

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "BudgetError",
    "BuildProgress",
    "Condition",
    "CostFactors",
    "Counts",
    "DatabaseMaster",
    "DatabaseSink",
    "Durations",
    "Engine",
    "Estimate",
    "Estimates",
    "Expectation",
    "HistoryError",
    "IcebergSink",
    "JoinPlan",
    "JoinShape",
    "KafkaSink",
    "Lookup",
    "LookupShare",
    "MasterTable",
    "Metrics",
    "MetricsListener",
    "OptionError",
    "ParquetSink",
    "Pipeline",
    "PricedClock",
    "RateCurve",
    "Retry",
    "Retuning",
    "Sample",
    "SemistreamError",
    "Shedding",
    "Skew",
    "SkewEstimate",
    "StarEngine",
    "StarMetrics",
    "StarPlan",
    "Status",
    "Sync",
    "SyncStatus",
    "TableSink",
    "Vacuumed",
    "VersionInfo",
    "above",
    "at_least",
    "at_most",
    "below",
    "between",
    "deduplicate",
    "engine",
    "errors",
    "estimate",
    "estimate_skew",
    "join",
    "join_star",
    "key_table",
    "load_dimension",
    "local_session",
    "parsed",
    "pinned_versions",
    "plan",
    "register_source",
    "similar",
    "split_new",
    "star_engine",
    "surrogate_keys",
]

_ON_SPARK = {
    "Counts": "semistream.spark.pipeline.batch_log",
    "DatabaseSink": "semistream.spark.pipeline.database_sink",
    "IcebergSink": "semistream.spark.pipeline.iceberg_sink",
    "KafkaSink": "semistream.spark.pipeline.kafka_sink",
    "MetricsListener": "semistream.spark.pipeline.listener",
    "ParquetSink": "semistream.spark.pipeline.sinks",
    "Pipeline": "semistream.spark.pipeline.pipeline",
    "Retry": "semistream.spark.pipeline.routes",
    "Status": "semistream.spark.pipeline.pipeline",
    "Sync": "semistream.spark.sync.sync",
    "SyncStatus": "semistream.spark.sync.sync",
    "TableSink": "semistream.spark.pipeline.sinks",
    "pinned_versions": "semistream.spark.pipeline.batch_log",
    "join": "semistream.spark.join",
    "join_star": "semistream.spark.star",
    "local_session": "semistream.spark.session",
    "parsed": "semistream.spark.records",
    "register_source": "semistream.spark.source",
    "deduplicate": "semistream.spark.transformations.duplicates",
    "load_dimension": "semistream.spark.transformations.dimensions",
    "split_new": "semistream.spark.transformations.changes",
    "surrogate_keys": "semistream.spark.transformations.surrogates",
}


def __getattr__(name: str) -> object:
    if name in _ON_SPARK:
        return getattr(_import_module(_ON_SPARK[name]), name)
    raise AttributeError(f"module 'semistream' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
