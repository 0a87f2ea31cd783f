"""Fit an FX graph, in place: rewrites of all kinds and an order, or the graph as it was and one warning.

    found = fit_graph(gm, memory_limit="40GiB")

For graphs that run as they are (a whole training step of torchtitan's GraphTrainer). :mod:`overlap_sched.titan` does it
on all ranks alike.

**The step in parts along its batch**, forward and backward of one part before the next, for memory: what one level of a
network holds in forward and backward is then held for one part at a time. Weights go whole to every part, and their
gradients are added up, so that these are rounded otherwise than those of the whole batch; they are used behind the last
part.
"""

import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from overlap_sched.cost.model import check_model
from overlap_sched.errors import OptionsError, OverlapSchedWarning
from overlap_sched.fit import Fit, fit
from overlap_sched.fit.planner import KINDS as OF_VALUES
from overlap_sched.fit.planner import point
from overlap_sched.fx.dimensions.candidates import expert_fissions, fission_candidates, fission_of
from overlap_sched.fx.dimensions.region import Region, region_from
from overlap_sched.fx.dimensions.rules import is_float, shape
from overlap_sched.fx.lifting import LIFTING, Lifted, lift
from overlap_sched.fx.rewrites import alike_of, prepare, rerunnable
from overlap_sched.fx.rewrites.apply import plan_lifted
from overlap_sched.fx.rewrites.facts import GraphFacts
from overlap_sched.options import Options, check_names, on_devices, options_given
from overlap_sched.report.words.rewrites import lacking_line
from overlap_sched.transform.dimension_graph import EndsError, range_cut
from overlap_sched.transform.prices import PCIE_5, HostLink, Prices
from overlap_sched.transform.rewrites import Fission
from overlap_sched.transform.tuning import TUNING

FISSION, BATCH = "fission", "batch"
KINDS = (*OF_VALUES, FISSION)
"""What is done where nothing else is asked for: results stay equal to the last bit."""
ALL = (*KINDS, BATCH)
"""What may be asked for; the last rounds otherwise: the step in parts along its batch, whose gradients are added up."""


PARTS = (2, 4, 8, 16)


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


def batch_fissions(lifted: Lifted, parts: Sequence[int] = PARTS) -> list[Fission]:
    """Fissions of as much of a step as runs in parts along the batch; by ascending number of parts.

    Args:
        lifted: Of a whole step.
        parts: Into how many; where the batch does not divide, or the graph would be too large, it is left out.
    """
    graph = lifted.nodes[0].graph
    us = {node.name: node.time_us for node in lifted.problem.nodes}
    facts = GraphFacts(graph)
    never = {one for one in graph.nodes if facts.written(one) or one in facts.after or facts.by_address(one)}
    best, most_us = None, TUNING.least_part * sum(us.values())
    for seed in (*_inputs(graph), *_second(graph)):
        region = _grown(graph, *seed, 2, never)
        held_us = sum(us.get(inside.name, 0.0) for inside in region.gives) if region is not None else 0.0
        if held_us > most_us:
            best, most_us = seed, held_us
    regions = (_grown(graph, *best, n, never) if best else None for n in parts)
    most_new = TUNING.fission_nodes - len(lifted.problem.nodes)
    small = (one for one in regions if one and len(one.gives) * (one.parts - 1) <= most_new)
    return [found for one in small if (found := fission_of(one)) is not None]


def _inputs(graph: fx.Graph) -> list[tuple[fx.Node, int]]:
    """Inputs whose first dimension many values share; of one shape only the first."""
    values = {node: value for node in graph.nodes if isinstance(value := node.meta.get("val"), torch.Tensor)}
    first = {node: value.shape[0] for node, value in values.items() if value.ndim and type(value.shape[0]) is int}
    sizes = Counter(first.values())
    shapes = {tuple(values[node].shape): node for node in reversed(first) if node.op == "placeholder"}
    return [(node, 0) for node in sorted(shapes.values(), key=lambda node: -sizes[first[node]])[: TUNING.inputs]]


def _second(graph: fx.Graph) -> list[tuple[fx.Node, int]]:
    """Inputs that may have their batch behind another dimension: tokens and labels, listed (sequence, batch)."""
    found: dict[tuple[int, ...], fx.Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.ndim > 1 and not is_float(node):
            found.setdefault(tuple(value.shape), node)
    return [(node, 1) for node in list(found.values())[: TUNING.inputs]]


def _grown(graph: fx.Graph, seed: fx.Node, dim: int, parts: int, never: Collection[fx.Node]) -> Region | None:
    try:
        seeds = {seed: range_cut(shape(seed), dim, parts)}
    except EndsError:
        return None
    region = region_from(graph, seeds, parts, never=never, sums=True)
    return region if region.gives else None
