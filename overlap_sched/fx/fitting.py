"""Fit an FX graph, in place: rewrites of all kinds and an order, or the graph as it was and one warning.

    found = fit_graph(gm, memory_limit="40GiB")

For graphs that run as they are (a whole training step of torchtitan's GraphTrainer). :mod:`overlap_sched.titan` does it
on all ranks alike.
"""

import warnings
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from torch import fx

from overlap_sched.cost.model import check_model
from overlap_sched.errors import OptionsError, OverlapSchedWarning
from overlap_sched.fit import Fit, fit
from overlap_sched.fit.planner import KINDS as OF_VALUES
from overlap_sched.fit.planner import point
from overlap_sched.fx.dimensions.candidates import expert_fissions, fission_candidates
from overlap_sched.fx.lifting import LIFTING, Lifted, lift
from overlap_sched.fx.rewrites import alike_of, prepare, rerunnable
from overlap_sched.fx.rewrites.apply import plan_lifted
from overlap_sched.fx.rewrites.batches import batch_fissions
from overlap_sched.options import Options, check_names, on_devices, options_given
from overlap_sched.report.words.rewrites import lacking_line
from overlap_sched.transform.prices import PCIE_5, HostLink, Prices

FISSION, BATCH = "fission", "batch"
KINDS = (*OF_VALUES, FISSION)
"""What is done where nothing else is asked for: results stay equal to the last bit."""
ALL = (*KINDS, BATCH)
"""What may be asked for; the last rounds otherwise: the step in parts along its batch, whose gradients are added up."""


def fit_graph(
    gm: fx.GraphModule,
    options: Options | None = None,
    *,
    memory_limit: int | str | None = None,
    max_slowdown: float | None = None,
    kinds: Collection[str] = KINDS,
    host: HostLink = PCIE_5,
    host_limit_bytes: int | None = None,
    effort: int = 2,
    **lifting: Any,
) -> Fit:
    """Rewrite and reorder a graph so that it keeps to a limit; arguments as of :func:`overlap_sched.fit.fit`.

    A plan that does not keep the limit is not used; nor is one that cannot be done to the graph. With
    ``options.rewrites``, collectives of the fitted graph are then rewritten within the peak that it has.

    Args:
        gm: Its nodes have ``meta["val"]``. Recompiled.
        options: Of the scheduler; ``strict`` raises where the default warns.
        memory_limit: The question is the shortest step within it.
        max_slowdown: Or it is the lowest peak within this.
        kinds: What may be done, of :data:`ALL`.
        host: The link to host memory.
        host_limit_bytes: Pinned host memory at most.
        effort: How much is tried: 0, 1 or 2.
        **lifting: As of :func:`overlap_sched.fx.lift`: ``model``, ``cluster``, ``donated`` and so on.

    Raises:
        OptionsError: Both questions or none, or a value that cannot be.
        Exception: With ``strict``, what kept a plan from being used.
    """
    options = options_given(options)
    check_names("fit_graph", "gm, ", lifting, LIFTING)
    check_model(lifting.get("model"))
    lifted = lift(gm, **lifting)
    question = {"memory_limit": memory_limit, "max_slowdown": max_slowdown, "host_limit_bytes": host_limit_bytes}
    found = fit_lifted(lifted, options, kinds=kinds, host=host, effort=effort, **question)
    name, best = lifted.problem.name, found.best
    if not found.live_bytes_fit:
        return _left(found, options, f"{name!r} as it is: no plan found keeps the limit")
    if not found.fits:
        warnings.warn(f"overlap_sched fits {name!r}, but not all of it: {lacking_line(found)}", OverlapSchedWarning, 2)
    try:
        prepare(gm, best.rewrites, best.problem.names(best.order)).commit()
    except Exception as error:  # what fails here must not take the training job with it
        return _left(found, options, f"{name!r} as it is: {error}", error)
    try:
        return _with_collectives(gm, found, options, lifting)
    except Exception as error:
        return _left(found, options, f"the collectives of {name!r} as they are: {error}", error)


def _left(found: Fit, options: Options, what: str, error: Exception | None = None) -> Fit:
    if error is not None and options.strict:
        raise error
    warnings.warn(f"overlap_sched leaves {what}", OverlapSchedWarning, stacklevel=3)
    return found


def fit_lifted(
    lifted: Lifted,
    options: Options,
    *,
    kinds: Collection[str] = KINDS,
    host: HostLink = PCIE_5,
    **question: Any,
) -> Fit:
    """Plan as :func:`fit_graph` does, with its arguments, and leave the graph as it is.

    Values go to the host only from CUDA devices; ``lifted.model`` prices what rewrites make.
    """
    if unknown := sorted(set(kinds) - set(ALL)):
        raise OptionsError(f"kinds has {unknown[0]!r}; known are {', '.join(map(repr, ALL))}.")
    of_values = [kind for kind in OF_VALUES if kind in kinds and (kind != "offload" or "cuda" in lifted.devices)]
    prices = Prices(lifted.model, host=host)
    some = fission_candidates(lifted) if FISSION in kinds else []
    batches = [*batch_fissions(lifted), *expert_fissions(lifted)] if BATCH in kinds else []
    return fit(
        lifted.problem,
        prices,
        on_devices(options, lifted.devices),
        kinds=of_values,
        rerun=rerunnable(lifted.nodes[0].graph),
        extra=some,
        fissions=batches,
        **question,
    )


def _with_collectives(gm: fx.GraphModule, found: Fit, options: Options, lifting: dict[str, Any]) -> Fit:
    """Rewrite the collectives of a fitted graph, which may then not hold more than it does."""
    if not options.rewrites or lifting.get("cost") is not None:  # times of nodes say nothing of what rewrites make
        return found
    lifted = lift(gm, **lifting)
    made = plan_lifted(lifted, replace(on_devices(options, lifted.devices), headroom=0), alike_of(gm))
    if not made.rewrites:
        return found
    problem, order = made.schedule.problem, made.schedule.order
    prepare(gm, made.rewrites, problem.names(order)).commit()
    return replace(found, best=point((*found.best.rewrites, *made.rewrites), problem, order))
