"""What the Spark that is installed lacks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_made_up_stream = pytest.mark.skipif(
    find_spec("pyspark.sql.streaming.datasource") is None,
    reason="the made-up stream needs Spark 4.2",
)
