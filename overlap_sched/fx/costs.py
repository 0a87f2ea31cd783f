"""What every node costs: operations and bytes from its shapes, times from a cost model or the user's callable."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.cost import FREE, Collective, Compute, CostModel, Price
from overlap_sched.cost.fusion import KernelShare, parts_of_kernels, shared_prices
from overlap_sched.cost.model import Source, ask_model, price_of
from overlap_sched.errors import CostError, OptionsError
from overlap_sched.fx.calls import call_of, name_and_group
from overlap_sched.fx.catalogue import HOST_COPIES
from overlap_sched.fx.fusion import FlopCounter, rules_for, steps_of
from overlap_sched.fx.operators import NO_CALL, Comm, Role, arguments_of, is_higher_order, only_wraps
from overlap_sched.fx.reading import Reading
from overlap_sched.problem import Group
from overlap_sched.transform.host import PCIE_5

_ROWS_READ = frozenset({"embedding", "index", "_unsafe_index", "index_select", "gather", "take"})
"""Operators of ``aten`` that read of their first argument, the table, as many rows as they give.

An embedding reads the rows of its tokens, not its table. What returns a new tensor of the whole size has really written
all of it: the gradient of an embedding (``embedding_dense_backward``) is filled with zeros first, ``index_put`` copies.
"""
_ROWS_WRITTEN = {
    **{"index_put_": "values", "index_copy_": "source", "index_add_": "source"},
    **{"scatter_": "src", "scatter_add_": "src", "scatter_reduce_": "src"},
}
"""Operators that write rows of it, and what they write: an argument."""
_ROWS_ADDED = frozenset({"index_add_", "scatter_add_", "scatter_reduce_"})
"""Of these, what reads the rows, too, before it writes them; ``index_put_`` where it is told to."""

Cost = Callable[[fx.Node], float | None]
"""A user's own times, in microseconds; ``None`` leaves a node to the model."""

Fusion = Literal["none", "inductor"]
"""Whether nodes are priced one by one, as where a graph runs as it is (``none``), or by the kernels that TorchInductor
would make of them (:mod:`overlap_sched.cost.fusion`)."""


class Costs(NamedTuple):
    """Per node: operations, bytes, price."""

    flops: list[int]
    bytes: list[int]
    prices: list[Price]


def costs_of(
    reading: Reading,
    model: CostModel,
    cost: Cost | None,
    groups: Mapping[str, Group],
    fusion: Fusion = "none",
    after: Mapping[int, set[int]] | None = None,
) -> Costs:
    """Costs of all nodes; inputs, waits and outputs are free.

    Bytes of a compute node are those of the tensors that it takes (each node once, expanded dimensions counted) and
    gives, of a table only the rows that are touched (:func:`untouched_bytes`); views, ``getitem`` and ``empty``
    are free. Bytes of a collective are the larger of what it takes and gives. With ``fusion="inductor"`` nodes that
    become one kernel share what that moves, and its time.

    Args:
        reading: Of the graph.
        model: Prices what ``cost`` leaves to it.
        cost: The user's times.
        groups: Sizes and places of the groups.
        fusion: See :data:`Fusion`.
        after: Dependencies that are not data: no kernel spans them.

    Raises:
        CostError: ``cost`` returned something that is not a finite time of 0 or more.
        OptionsError: ``fusion`` is neither.
    """
    if fusion not in get_args(Fusion):
        raise OptionsError(f"fusion is {fusion!r}; it is 'none' or 'inductor'.")
    n = len(reading.nodes)
    result = Costs([0] * n, [0] * n, [FREE] * n)
    source: Source = getattr(cost, "source", "user")
    counter = FlopCounter(reading.storages.hint, reading.notes)
    free: set[int] = set()
    given: set[int] = set()
    bodies: dict[Reading, _Total | None] = {}
    for v, traits in enumerate(reading.traits):
        comm = traits.comm
        if traits is NO_CALL or traits.role is Role.WAIT:
            continue
        if comm is not None:
            result.bytes[v] = _bytes_sent(reading, v)
            price = _price_of_collective(reading, v, comm, groups, model)
        elif is_free(reading, v):
            free.add(v)
            price = FREE
        elif (inside := _inside(reading, v, bodies, model, groups, fusion) if traits.nested else None) is not None:
            result.flops[v], result.bytes[v], price = inside
            given.add(v)  # no kernel of this graph
        else:
            flops = result.flops[v] = _flops(reading, v, counter)
            nbytes = result.bytes[v] = _bytes_moved(reading, v)
            price = price_of(model, Compute(traits.op, flops, nbytes))
            if v in reading.inner:
                price = price._replace(time_us=price.time_us + _us_sent_inside(reading, v, groups, model))
        us = None if cost is None else ask_model(cost, reading.nodes[v], lambda given: given)
        if us is not None:
            given.add(v)
            price = Price(_checked(us, reading.nodes[v]), source)
        result.prices[v] = price
    if fusion == "inductor":
        rules = rules_for(reading)
        parts = parts_of_kernels(steps_of(reading, free, after or {}, rules), rules)
        _fuse(reading, result, parts, model, given)
    return result


def _fuse(
    reading: Reading, costs: Costs, parts: Sequence[KernelShare | None], model: CostModel, given: set[int]
) -> None:
    """Replace bytes and prices by those of the kernels. Where the user gave times, they are all that a kernel takes."""
    names, ops = [node.name for node in reading.nodes], [traits.op for traits in reading.traits]
    known = {part.kernel for v in given if (part := parts[v]) is not None}
    for v, price in shared_prices(parts, names, ops, costs.flops, model).items():
        part = parts[v]
        if part is None:
            continue
        costs.bytes[v] = part.bytes
        if v not in given:
            costs.prices[v] = price._replace(time_us=0.0) if part.kernel in known else price


def _bytes_sent(r: Reading, v: int) -> int:
    """Bytes of a collective: the larger of what it takes and gives."""
    takes = sum([r.value_bytes[u] for u in r.looked_at(v)])
    return max(takes - r.overwritten_bytes.get(v, 0), r.value_bytes[v])


def _price_of_collective(r: Reading, v: int, comm: Comm, groups: Mapping[str, Group], model: CostModel) -> Price:
    nbytes = _bytes_sent(r, v)
    if comm.op in HOST_COPIES:
        return Price(PCIE_5.copy_us(nbytes), "table", "bandwidth")
    return price_of(model, Collective(comm.op, nbytes, groups[name_and_group(r.nodes[v])[0]]))


def _us_sent_inside(r: Reading, v: int, groups: Mapping[str, Group], model: CostModel) -> float:
    """How long the collectives in the sub-graphs of a node take: each sub-graph once; of branches, the longest."""
    sent_us = [0.0]
    for inner in r.inner.get(v, ()):
        sent_us.append(0.0)
        for u, traits in enumerate(inner.traits):
            if traits.comm is not None and traits.role is not Role.WAIT:
                sent_us[-1] += _price_of_collective(inner, u, traits.comm, groups, model).time_us
            sent_us[-1] += _us_sent_inside(inner, u, groups, model)
    return max(sent_us) if is_higher_order(r.nodes[v].target, "cond") else sum(sent_us)


def is_free(r: Reading, v: int) -> bool:
    """Views and the like: nothing new, nothing written."""
    if r.traits[v].free:
        return True
    root = r.storages.root
    return v not in r.writes and not any(root[s] == s for s in r.raw_fresh[v])


def _bytes_moved(r: Reading, v: int) -> int:
    takes, gives = sum([r.value_bytes[u] for u in r.looked_at(v)]), r.value_bytes[v]
    overwritten = r.overwritten_bytes.get(v, 0)
    return takes - overwritten + max(gives, overwritten) - untouched_bytes(r, v)


def untouched_bytes(r: Reading, v: int) -> int:
    """Bytes of a node's table, as often as it is counted among what the node takes and gives, that it leaves alone."""
    node = r.nodes[v]
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return 0
    name = target.overloadpacket.__name__
    if name not in _ROWS_READ and name not in _ROWS_WRITTEN:
        return 0
    bytes_of = {r.nodes[u]: r.value_bytes[u] for u in r.inputs[v]}
    arguments = arguments_of(target, node.args, node.kwargs)
    table = bytes_of.get(next(iter(arguments.values()), None), 0)
    if name in _ROWS_READ:
        return max(0, table - r.value_bytes[v])
    source = arguments.get(_ROWS_WRITTEN[name])
    value = source.meta.get("val") if isinstance(source, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.dim():
        return 0  # one number for whoever is named: as many as there are rows, perhaps
    untouched = table - min(table, bytes_of[source])
    return untouched * 2 if name in _ROWS_ADDED or arguments.get("accumulate") else untouched + table


def _flops(r: Reading, v: int, counter: FlopCounter) -> int:
    node, inputs = r.nodes[v], [r.nodes[u] for u in r.inputs[v]]
    if not r.traits[v].nested:
        return counter.count(node.target, node.args, node.kwargs, node.meta.get("val"), inputs)
    call = call_of(node)
    given = None if call.given is None else call.given(node.meta.get("val"))
    flops = counter.count(call.target, call.args, call.kwargs, given, inputs)
    if not flops:  # of what runs several sub-graphs, or one of them several times: each once
        for inner in r.inner.get(v, ()):
            flops += sum(_flops(inner, u, counter) for u, one in enumerate(inner.nodes) if one.op == "call_function")
    return flops


class _Total(NamedTuple):
    """What all nodes of a sub-graph cost together: operations, bytes, price."""

    flops: int
    bytes: int
    price: Price


def _inside(
    r: Reading,
    v: int,
    known: dict[Reading, _Total | None],
    model: CostModel,
    groups: Mapping[str, Group],
    fusion: Fusion,
) -> _Total | None:
    """Return the cost of the sub-graph that a node runs; ``None``: the node does more, or no shapes are known."""
    bodies = r.inner.get(v, ())
    if len(bodies) != 1 or not only_wraps(call_of(r.nodes[v]).target):
        return None
    (reading,) = bodies
    if reading not in known:
        costs = costs_of(reading, model, None, groups, fusion)
        longest = max(costs.prices, key=lambda price: price.time_us, default=FREE)
        price = longest._replace(time_us=_step_us(reading, costs.prices), part_of="")
        known[reading] = None if reading.notes["no_val"] else _Total(sum(costs.flops), sum(costs.bytes), price)
    return known[reading]


def _step_us(r: Reading, prices: Sequence[Price]) -> float:
    """How long a sub-graph takes: its collectives run beside its compute, and have finished when it returns."""
    clock_us, finish_us, free_us = 0.0, dict[int, float](), dict[str, float]()
    for v, price in enumerate(prices):
        if r.traits[v].role is Role.LAUNCH:
            group, _ = name_and_group(r.nodes[v])
            finish_us[v] = free_us[group] = max(clock_us, free_us.get(group, 0.0)) + price.time_us
        else:
            clock_us = max([clock_us, *(finish_us[u] for u in r.ends.get(v, ()))]) + price.time_us
    return max([clock_us, *free_us.values()])


def _checked(given: float, node: fx.Node) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0.0 <= given < math.inf:
        raise CostError(
            f"cost() returned {given!r} for node {node.name!r}. "
            "Return microseconds, 0 or more, or None to use the cost model."
        )
    return float(given)
