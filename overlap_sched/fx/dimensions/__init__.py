"""The dimension graph of an FX graph: what a cut of one value makes of the others, operator by operator.

``rules`` says it of one call (``moves``, ``sums``, ``attention``: tables by operator object), ``region`` of a graph:
from a few values that are cut to all that can run in parts, ``border`` makes a fission of it, and ``candidates`` lists
those worth trying. The arithmetic is in
:mod:`overlap_sched.transform.dimension_graph`, what comes of it in :mod:`overlap_sched.fx.rewrites.fission`.
"""

from overlap_sched.fx.dimensions.candidates import fission_of
from overlap_sched.fx.dimensions.region import Region, region_from, told

__all__ = ["Region", "fission_of", "region_from", "told"]
"""What others use."""
