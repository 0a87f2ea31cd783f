"""Hide communication behind compute without ever costing memory.

>>> import overlap_sched
>>> result = overlap_sched.schedule(overlap_sched.EXAMPLE)
>>> result.original.step_us, result.scheduled.step_us  # at the same peak
(190.0, 150.0)
>>> overlap_sched.schedule(overlap_sched.EXAMPLE, overlap_sched.Options(headroom="5MiB")).scheduled.step_us
120.0

Graphs of ``torch.compile`` go through :func:`overlap_sched.schedule_graph`. Only that and its like import torch;
problems are read, scheduled and judged without it.
"""

from typing import Any

from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem, Storage
from overlap_sched.problem.file import read_problem, write_problem
from overlap_sched.scheduler.pipeline import schedule
from overlap_sched.scheduler.result import Decision, Figures, Schedule

__version__ = "0.2.0"

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

_FX = ("ProfileCost", "declare_operator", "lift", "pinned", "reorder", "schedule_graph")
_INDUCTOR = (
    "backend",
    "clear_reports",
    "disable",
    "enable",
    "enabled",
    "inductor_options",
    "partitions",
    "reports",
    "write_pages",
)


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for."""
    if name in _FX:
        import overlap_sched.fx

        return getattr(overlap_sched.fx, name)
    if name in _INDUCTOR:
        import overlap_sched.inductor

        return getattr(overlap_sched.inductor, name)
    if name == "load_dump":
        from overlap_sched.dump import load_dump

        return load_dump
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
