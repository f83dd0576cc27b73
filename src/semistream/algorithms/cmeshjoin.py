"""CMESHJOIN: MESHJOIN behind a front stage.

Naeem et al.: *Skewed Distributions in Semi-Stream Joins: How much can Caching help?*,
Information Systems 2017, §3.1.

     S ─► front stage ──hit──► output
            │ miss  ▲ rows that many waiting tuples matched
            ▼       │
          MESHJOIN ─┘

| paper | here |
| --- | --- |
| SB_1, SB_2 | the stream buffer; the front stage's misses |
| H_R, frequency recorder | the front stage's kept rows and their two numbers |
| H_S, Q, disk buffer | MESHJOIN's |
"""

from __future__ import annotations

from semistream.algorithms.assembly import WithFrontStage
from semistream.algorithms.meshjoin import MeshJoin

CMESHJOIN = WithFrontStage("cmeshjoin", MeshJoin)
