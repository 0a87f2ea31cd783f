"""Lift FX graphs into problems, hazards included, and put orders back. Imports torch.

    report = schedule_graph(gm, Options(headroom="1GiB"))   # reorders gm in place, or says why not
    print(report)

Step by step: ``lift`` reads the graph (:mod:`~overlap_sched.fx.reading`), finds what must keep its order
(:mod:`~overlap_sched.fx.hazards`), live ranges (:mod:`~overlap_sched.fx.lifting`) and what it costs
(:mod:`~overlap_sched.fx.costs`); ``reorder`` puts an order back.
"""

from overlap_sched.fx.apply import Report, schedule_graph
from overlap_sched.fx.costs import Cost
from overlap_sched.fx.graphs import pinned, reorder
from overlap_sched.fx.lifting import Lifted, lift
from overlap_sched.fx.operators import declare_operator
from overlap_sched.fx.profile import ProfileCost

__all__ = ["Cost", "Lifted", "ProfileCost", "Report", "declare_operator", "lift", "pinned", "reorder", "schedule_graph"]
