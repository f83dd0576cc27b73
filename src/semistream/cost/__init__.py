"""The cost model: what a join will cost, before it runs.

`factors` are the seconds that single operations take, `pricing` multiplies them with what was
counted.
"""

from semistream.cost.factors import CostFactors
from semistream.cost.pricing import priced_rate, priced_seconds

__all__ = ["CostFactors", "priced_rate", "priced_seconds"]
