"""Make a step fit: recompute, offload, run in parts, and reorder, under one byte budget or one step limit.

    found = fit(problem, prices, memory_limit="40GiB")  # the shortest step found within the limit
    found = fit(problem, prices, max_slowdown=0.05)                  # the lowest peak found at most 5 % slower

Simulated, as all of the package: one compute stream, one stream per process group, one of copies to the host.
"""

from overlap_sched.fit.answer import Fit, FitPoint
from overlap_sched.fit.planner import fit

__all__ = ["Fit", "FitPoint", "fit"]
