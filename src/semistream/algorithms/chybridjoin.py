"""CHYBRIDJOIN (also CACHEJOIN): HYBRIDJOIN behind a front stage.

Naeem et al.: *Skewed Distributions in Semi-Stream Joins: How much can Caching help?*,
Information Systems 2017, Algorithm 1.

     S ─► front stage ──hit──► output
            │ miss  ▲ rows that many waiting tuples matched
            ▼       │
        HYBRIDJOIN ─┘

| paper | here |
| --- | --- |
| line 3, Algorithm 2: load shedding | `Shedder.adjust`, before each step of a timed run |
| line 4, Algorithm 3 | `FrontStage.read`, where HYBRIDJOIN reads its stream |
| lines 5 to 18 | `HybridJoin.step` |
| f, lines 19 to 22 | `FrontStage.offer`, told by the probing of each partition |
| w_F, w_B | hits; slots that a step frees |
"""

from __future__ import annotations

from semistream.algorithms.assembly import WithFrontStage
from semistream.algorithms.hybridjoin import HybridJoin

CHYBRIDJOIN = WithFrontStage("chybridjoin", HybridJoin)
