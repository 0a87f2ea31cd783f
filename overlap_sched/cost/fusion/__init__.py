"""Which operators a compiler makes one kernel of, and what such a kernel moves: predicted, or shared out by name.

- :mod:`~overlap_sched.cost.fusion.steps`: what is predicted from, and the rules of a back end.
- :mod:`~overlap_sched.cost.fusion.loop_nests`: which elementwise steps are computed where they are read.
- :mod:`~overlap_sched.cost.fusion.merging`: which loops become one kernel.
- :mod:`~overlap_sched.cost.fusion.kernels`: all of it: nodes in, prices out.
- :mod:`~overlap_sched.cost.fusion.fused_names`: kernels that exist: their time shared among their nodes.
"""
