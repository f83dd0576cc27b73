"""CINLJ: INLJ behind a front stage.

Naeem et al.: *Skewed Distributions in Semi-Stream Joins: How much can Caching help?*,
Information Systems 2017, §3.3. It shows what the front stage gives by itself.

     S ─► front stage ──hit──► output
            │ miss  ▲ keys that come again
            ▼       │
          INLJ ─► recent keys

| paper | here |
| --- | --- |
| H_R, frequency recorder | the front stage's kept rows and their two numbers |
| temporary buffer | recent keys |
"""

from __future__ import annotations

from semistream.algorithms.assembly import WithFrontStage
from semistream.algorithms.inlj import IndexNestedLoopJoin

CINLJ = WithFrontStage("cinlj", IndexNestedLoopJoin)
