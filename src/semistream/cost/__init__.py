"""The cost model: what a join will cost, before it runs.

`factors` are the seconds that single operations take, `pricing` multiplies them with what was
counted, `model` says what will be counted, `tuner` finds the best sizes, `auto` the algorithm. For
the papers' own equations see `semistream_papers.equations`.
"""

from semistream.cost.factors import CostFactors
from semistream.cost.pricing import priced_rate, priced_seconds
from semistream.cost.skew import ORDERS, Skew

__all__ = ["ORDERS", "CostFactors", "Skew", "priced_rate", "priced_seconds"]
