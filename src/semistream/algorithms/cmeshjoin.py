"""x."""
from semistream.algorithms.assembly import with_front_stage
from semistream.algorithms.meshjoin import MeshJoin

CMeshJoin = with_front_stage(MeshJoin, "cmeshjoin")
