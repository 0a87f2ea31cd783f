"""Plug-ins of ``torch.compile``: the order is kept down to the generated code, or left as it was.

- :mod:`~overlap_sched.inductor.kernel_graph`: after Inductor's fusion, on its scheduler nodes; the default.
- :mod:`~overlap_sched.inductor.fx_stage`: on the FX graph that Inductor is about to lower.
- :mod:`~overlap_sched.inductor.partitioning`: where AOTAutograd cuts the joint graph; only where a limit is given.
- :mod:`~overlap_sched.inductor.eager`: ``torch.compile(model, backend="overlap_sched")``, which does not lower.

:mod:`~overlap_sched.inductor.switch` switches them on; :mod:`~overlap_sched.inductor.reporting` says what became of
each graph. torch's private names are used nowhere else in this package, and after fusion only in
:mod:`~overlap_sched.inductor.kernel_graph` and what that imports.
"""

from overlap_sched.inductor.eager import backend
from overlap_sched.inductor.partitioning import Partition, partitions
from overlap_sched.inductor.reporting import GraphReport, clear_reports, reports
from overlap_sched.inductor.switch import disable, enable, enabled, inductor_options

__all__ = [
    "GraphReport",
    "Partition",
    "backend",
    "clear_reports",
    "disable",
    "enable",
    "enabled",
    "inductor_options",
    "partitions",
    "reports",
]
