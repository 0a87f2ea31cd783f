"""The dimension graph of an FX graph: what a cut of one value makes of the others, operator by operator.

``rules`` says it of one call, ``routing`` of rows sent where data says; ``region`` follows it through a graph:
from a few values that are cut to all that can run in parts; ``candidates`` makes fissions, and lists those worth it.
The arithmetic is in :mod:`overlap_sched.transform.dimension_graph`, what comes of it in
:mod:`overlap_sched.fx.rewrites.maker`.
"""

from overlap_sched.fx.dimensions.candidates import fission_of
from overlap_sched.fx.dimensions.region import Region, cut_call, region_from

__all__ = ["Region", "cut_call", "fission_of", "region_from"]
"""What others use."""
