"""Fit an FX graph, in place: rewrites and an order, or the graph as it was and one warning.

    found = fit_graph(gm, memory_limit_bytes=40 * 2**30)

For graphs that run as they are (a whole training step of torchtitan's GraphTrainer).
"""

import warnings
from collections.abc import Collection, Sequence
from typing import Any

from torch import fx

from overlap_sched.errors import OverlapSchedError, OverlapSchedWarning
from overlap_sched.fit import Fit, FitPoint, fit
from overlap_sched.fit.questions import KINDS
from overlap_sched.fx.lifting import Lifted, lift
from overlap_sched.fx.rewrites import prepare, rerunnable
from overlap_sched.options import Options
from overlap_sched.transform.host import PCIE_5, HostLink
from overlap_sched.transform.prices import Prices


def fit_graph(
    gm: fx.GraphModule,
    options: Options | None = None,
    *,
    memory_limit_bytes: int | None = None,
    max_slowdown: float | None = None,
    kinds: Collection[str] = KINDS,
    host: HostLink = PCIE_5,
    host_limit_bytes: int | None = None,
    **lifting: Any,
) -> Fit:
    """Rewrite and reorder a graph so that it keeps to a limit; arguments as of :func:`overlap_sched.fit.fit`.

    A plan that does not keep the limit is not used; nor is one that cannot be done to the graph. Values go to the host
    only from CUDA devices.

    Args:
        gm: Its nodes have ``meta["val"]``. Recompiled.
        options: Of the scheduler; ``strict`` raises where the default warns.
        memory_limit_bytes: The question is the shortest step within it.
        max_slowdown: Or it is the lowest peak within this.
        kinds: What may be done.
        host: The link to host memory.
        host_limit_bytes: Pinned host memory at most.
        **lifting: As of :func:`overlap_sched.fx.lift`: ``model``, ``cluster``, ``donated`` and so on.

    Raises:
        OptionsError: Both questions or none, or a value that cannot be.
        OverlapSchedError: With ``strict``, where a plan is not used.
    """
    lifted = lift(gm, **lifting)
    allowed = tuple(kind for kind in kinds if kind != "offload" or "cuda" in lifted.devices)
    found = fit(
        lifted.problem,
        Prices(lifted.model, host=host),
        options,
        memory_limit_bytes=memory_limit_bytes,
        max_slowdown=max_slowdown,
        kinds=allowed,
        rerun=rerunnable(gm),
        host_limit_bytes=host_limit_bytes,
    )
    why_not = "" if found.fits else "no plan found keeps the limit"
    try:
        if not why_not:
            _do(gm, lifted, found.best)
    except OverlapSchedError as error:
        why_not = str(error)
        if options is not None and options.strict:
            raise
    if why_not:
        message = f"overlap_sched leaves {lifted.problem.name!r} as it is: {why_not}"
        warnings.warn(message, OverlapSchedWarning, stacklevel=2)
    return found


def _do(gm: fx.GraphModule, lifted: Lifted, best: FitPoint) -> None:
    names: Sequence[str] = best.problem.names(best.order)
    prepare(gm, best.rewrites, names).commit()
