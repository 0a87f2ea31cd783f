"""Lift FX graphs into problems, hazards included, and put orders back. Imports torch."""

from overlap_sched.fx.apply import Report, schedule_graph
from overlap_sched.fx.costs import Cost
from overlap_sched.fx.dump import Dump, load_dump
from overlap_sched.fx.lift import Lifted, lift
from overlap_sched.fx.reorder import reorder

__all__ = ["Cost", "Dump", "Lifted", "Report", "lift", "load_dump", "reorder", "schedule_graph"]
