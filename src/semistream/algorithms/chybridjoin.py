"""x."""
from semistream.algorithms.assembly import with_front_stage
from semistream.algorithms.hybridjoin import HybridJoin

CHybridJoin = with_front_stage(HybridJoin, "chybridjoin")
