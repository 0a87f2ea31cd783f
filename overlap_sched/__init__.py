"""Hide communication behind compute without ever costing memory.

>>> import overlap_sched
>>> result = overlap_sched.schedule(overlap_sched.EXAMPLE)
>>> round(result.original.step_us), round(result.scheduled.step_us)
(190, 120)

The core (this package's top level) never imports torch; ``overlap_sched.fx`` does.
"""

from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem, Storage
from overlap_sched.problem_file import read_problem, write_problem
from overlap_sched.result import Decision, Figures, Schedule
from overlap_sched.schedule import schedule

__all__ = [
    "EXAMPLE",
    "Decision",
    "Figures",
    "Group",
    "Kind",
    "Node",
    "Options",
    "Problem",
    "Schedule",
    "Storage",
    "read_problem",
    "schedule",
    "write_problem",
]
