"""What every node costs: operations and bytes from its shapes, times from a cost model or the user's callable."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.cost import FREE, Collective, Compute, CostModel, Price
from overlap_sched.cost.compute import NO_SHAPE, SHAPED, kind_of, shape_of
from overlap_sched.cost.fusion import parts_of_kernels, shared_prices
from overlap_sched.cost.model import Source, ask_model, price_of
from overlap_sched.errors import CostError, OptionsError
from overlap_sched.fx.calls import EffectiveCall, call_of, name_and_group
from overlap_sched.fx.catalogue import HOST_COPIES
from overlap_sched.fx.fusion import Loop, formula, loop_of, rules_for, steps_of
from overlap_sched.fx.operators import NO_CALL, Role, arguments_of, is_higher_order, only_wraps
from overlap_sched.fx.reading import Reading
from overlap_sched.problem import Group
from overlap_sched.transform.prices import PCIE_5

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


@dataclass
class Pricing:
    """How the nodes of a graph, and of its sub-graphs, are priced.

    Attributes:
        model: Prices what the user's times leave to it.
        groups: Sizes and places of the groups.
        fusion: See :data:`Fusion`.
        bodies: What was found of sub-graphs.

    Raises:
        OptionsError: ``fusion`` is neither.
    """

    model: CostModel
    groups: Mapping[str, Group]
    fusion: Fusion = "none"
    bodies: dict[Reading, tuple[int, int, Price] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fusion not in get_args(Fusion):
            raise OptionsError(f"fusion is {self.fusion!r}; it is 'none' or 'inductor'.")

    def costs(self, r: Reading, cost: Cost | None, after: Mapping[int, set[int]] | None = None) -> Costs:
        """Costs of all nodes; inputs, waits and outputs are free.

        Bytes of a compute node are those of the tensors that it takes (each node once, expanded dimensions counted) and
        gives, of a table only the rows that are touched (:func:`untouched_bytes`); views, ``getitem`` and ``empty``
        are free. Bytes of a collective are the larger of what it takes and gives. With ``fusion="inductor"`` nodes that
        become one kernel share what that moves, and its time.

        Args:
            r: Of the graph.
            cost: The user's times.
            after: Dependencies that are not data: no kernel spans them.

        Raises:
            CostError: ``cost`` returned something that is not a finite time of 0 or more.
        """
        n = len(r.nodes)
        result = Costs([0] * n, [0] * n, [FREE] * n)
        source: Source = getattr(cost, "source", "user")
        free, given = set[int](), set[int]()
        for v, traits in enumerate(r.traits):
            if traits is NO_CALL or traits.role is Role.WAIT:
                continue
            if traits.comm is not None:
                result.bytes[v], price = _bytes_sent(r, v), self.collective(r, v)
            elif is_free(r, v):
                free.add(v)
                price = FREE
            elif (body := self.body(r, v) if traits.nested else None) is not None:
                result.flops[v], result.bytes[v], price = body
                given.add(v)  # no kernel of this graph
            else:
                work = self.work(r, v)
                result.flops[v], result.bytes[v], price = work.flops, work.bytes, price_of(self.model, work)
                if v in r.inner:
                    price = price._replace(time_us=price.time_us + self.sent_inside_us(r, v))
            us = None if cost is None else ask_model(cost, r.nodes[v], lambda us: us)
            if us is not None:
                if isinstance(us, bool) or not isinstance(us, int | float) or not 0.0 <= us < math.inf:
                    raise CostError(
                        f"cost() returned {us!r} for node {r.nodes[v].name!r}. "
                        "Return microseconds, 0 or more, or None to use the cost model."
                    )
                given.add(v)
                price = Price(float(us), source)
            result.prices[v] = price
        if self.fusion == "inductor":
            self.fuse(r, result, free, given, after or {})
        return result

    def work(self, r: Reading, v: int) -> Compute:
        """Describe a node to the model. Strided are only kernels of PyTorch's own: a compiler writes others."""
        node, hint = r.nodes[v], r.storages.hint
        op, kind = r.traits[v].op, kind_of(r.traits[v].op)
        values = [n.meta.get("val") for n in (*node.args, *node.kwargs.values(), node) if isinstance(n, fx.Node)]
        sized = [one for one in values if isinstance(one, torch.Tensor) and one.dim()]
        shape = shape_of(op, [[hint(n) for n in one.shape] for one in sized]) if kind in SHAPED else NO_SHAPE
        if kind == "attention" and isinstance(node.target, OpOverload):
            kind = "causal" if arguments_of(node.target, node.args, node.kwargs).get("is_causal") is True else kind
        elif kind == "other" and self.fusion == "none" and loop_of(node.target) is Loop.POINTWISE:
            strided = [one for one in sized if one.layout is torch.strided]
            layouts = {(*map(hint, one.shape), -1, *_strides(list(map(hint, one.stride())))) for one in strided}
            kind = "strided" if len(layouts) > 1 else kind
        return Compute(op, _flops(r, v), _bytes_moved(r, v), kind, shape)

    def fuse(self, r: Reading, costs: Costs, free: set[int], given: set[int], after: Mapping[int, set[int]]) -> None:
        """Replace bytes and prices by those of the kernels; where the user gave times, they are all that one takes."""
        rules = rules_for(r)
        parts = parts_of_kernels(steps_of(r, free, after, rules), rules)
        names, ops = [node.name for node in r.nodes], [traits.op for traits in r.traits]
        known = {part.kernel for v in given if (part := parts[v]) is not None}
        for v, price in shared_prices(parts, names, ops, costs.flops, self.model).items():
            if (part := parts[v]) is not None:
                costs.bytes[v] = part.bytes
                if v not in given:
                    costs.prices[v] = price._replace(time_us=0.0) if part.kernel in known else price

    def collective(self, r: Reading, v: int) -> Price:
        """Price a collective, or a copy to or from the host."""
        comm, nbytes = r.traits[v].comm, _bytes_sent(r, v)
        if comm is None or comm.op in HOST_COPIES:
            return Price(PCIE_5.copy_us(nbytes), "table", "bandwidth")
        return price_of(self.model, Collective(comm.op, nbytes, self.groups[name_and_group(r.nodes[v])[0]]))

    def sent_inside_us(self, r: Reading, v: int) -> float:
        """How long the collectives in the sub-graphs of a node take: each sub-graph once; of branches, the longest."""
        sent_us = [0.0]
        for inner in r.inner.get(v, ()):
            calls = [u for u, traits in enumerate(inner.traits) if traits.comm and traits.role is not Role.WAIT]
            inside_us = sum(self.sent_inside_us(inner, u) for u in inner.inner)
            sent_us.append(sum((self.collective(inner, u).time_us for u in calls), inside_us))
        return max(sent_us) if is_higher_order(r.nodes[v].target, "cond") else sum(sent_us)

    def body(self, r: Reading, v: int) -> tuple[int, int, Price] | None:
        """Operations, bytes and price of the sub-graph that a node runs.

        ``None``: the node does more, or no shapes are known.
        """
        bodies = r.inner.get(v, ())
        if len(bodies) != 1 or not only_wraps(call_of(r.nodes[v]).target):
            return None
        (reading,) = bodies
        if reading not in self.bodies:
            costs = self.costs(reading, None)
            longest = max(costs.prices, key=lambda price: price.time_us, default=FREE)
            price = longest._replace(time_us=_step_us(reading, costs.prices), part_of="")
            self.bodies[reading] = None if reading.notes["no_val"] else (sum(costs.flops), sum(costs.bytes), price)
        return self.bodies[reading]


def _strides(strides: list[int]) -> list[int]:
    """Return how a tensor lies in memory; empty: as rows, or parts of rows, as buckets are copied from."""
    return [] if len(strides) <= 2 and strides[-1] == 1 else strides


def _bytes_sent(r: Reading, v: int) -> int:
    """Bytes of a collective: the larger of what it takes and gives."""
    return max(sum([r.value_bytes[u] for u in r.looked_at(v)]) - r.overwritten_bytes.get(v, 0), r.value_bytes[v])


def is_free(r: Reading, v: int) -> bool:
    """Views and the like: nothing new, nothing written."""
    if r.traits[v].free:
        return True
    return v not in r.writes and not any(r.storages.root[s] == s for s in r.raw_fresh[v])


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


def _flops(r: Reading, v: int) -> int:
    """Operations of a call; a formula that fails counts 0 and is noted as ``flops_failed``."""
    node, nested = r.nodes[v], r.traits[v].nested
    call = call_of(node) if nested else EffectiveCall(node.target, node.args, node.kwargs)
    flops_of, flops = formula(call.target), 0
    if flops_of is not None:
        values, named = fx.map_arg((call.args, dict(call.kwargs)), lambda n: n.meta.get("val"))
        try:
            flops = r.storages.hint(flops_of(*values, **named, out_val=call.given(node.meta.get("val"))))
        except Exception:  # formulas assert what they think of shapes; a wrong cost must not stop a pass
            r.notes["flops_failed"] += 1
    if nested and not flops:  # of what runs several sub-graphs, or one of them several times: each once
        calls = ((inner, u) for inner in r.inner.get(v, ()) for u, one in enumerate(inner.nodes))
        flops = sum(_flops(inner, u) for inner, u in calls if inner.nodes[u].op == "call_function")
    return flops


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
