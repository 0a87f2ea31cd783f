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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from overlap_sched.options import Options, close_to
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem, Storage
from overlap_sched.problem.file import read_problem, write_problem

if TYPE_CHECKING:
    from overlap_sched.scheduler.driver import Figures, Schedule, schedule
    from overlap_sched.scheduler.explain import Decision

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

_LAZY = {
    name: f"overlap_sched.{module}"
    for module, names in {
        "scheduler.driver": ("Figures", "Schedule", "schedule"),
        "scheduler.explain": ("Decision",),
        "fx": ("ProfileCost", "declare_operator", "lift", "pinned", "reorder", "schedule_graph"),
        "inductor": (
            *("backend", "enable", "enabled", "disable", "inductor_options"),
            *("clear_reports", "partitions", "reports"),
        ),
        "sharding": ("ShardedModule", "shard"),
        "dump": ("load_dump",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    """Import what is large, or needs torch, when it is first asked for; packages of this one, too."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    module = f"{__name__}.{name}"
    if not name.startswith("_"):
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    if name == "write_pages":
        raise AttributeError("write_pages was removed. Use overlap_sched.report.page.write_page on a schedule.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{close_to(name, [*_LAZY, *__all__])}")
