"""Sharded backward passes with bytes that fit: what rewrites are tried on, and prices by latency and rate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Problem
from overlap_sched.cost import Collective, Compute
from overlap_sched.judge.validate import violation
from overlap_sched.problem import FINISH, LAUNCH
from overlap_sched.transform.apply import apply
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.prices import Prices
from tests.support.graphs import Maker, Value
from tests.support.oracle import peak_by_definition, step_by_definition

# Whole steps whose weights are gathered for the forward and again, cast anew, for the backward; as problems.


RANKS = 4
CAST = "prims.convert_element_type.default"


class _Maker(Maker):
    def collective(self, name: str, op: str, source: Value, result_bytes: int, larger: int, waits: str = "") -> Value:
        us = PRICES.collective_us(op, larger, Group(RANKS, True))
        return self.launched(name, source, result_bytes, us, op, "fsdp", waits or f"{name}_wait", larger)

    def gathered(self, name: str, shard: Value, nbytes: int) -> Value:
        """Cast, gathered and waited for: the wait, and the storage of the result."""
        cast, full = self.storage(nbytes), nbytes * RANKS
        v = self.add(Node(f"cast{name}", Kind.COMPUTE, (shard[0],), (cast,), (shard[1],), 0.5, CAST))
        return self.collective(f"gather{name}", "all_gather_into_tensor", (v, cast), full, full, f"wait{name}")


FSDP = {"fsdp": Group(RANKS, True)}


def whole_step(
    sizes: Sequence[int], compute_us: float = 30.0, acts_bytes: int = 8, temporary_bytes: int = 0, again: bool = True
) -> Problem:
    """Layer by layer forward, then backward.

    Args:
        sizes: Bytes of each layer's shard.
        compute_us: Of a layer, forward as backward.
        acts_bytes: What each layer's forward keeps for its backward.
        temporary_bytes: What lives while the first layer runs backward, at the end: room before for what is kept.
        again: Weights are gathered again for the backward, ``gather<layer>b``; else held until then.
    """
    make = _Maker()
    shards = [make.given(f"w{k}", nbytes, pinned=True) for k, nbytes in enumerate(sizes)]
    acts, held = [make.given("x", acts_bytes)], []
    for k, nbytes in enumerate(sizes):
        weight = make.gathered(f"{k}f", shards[k], nbytes)
        held.append(weight)
        s = make.storage(acts_bytes)
        before = acts[-1]
        layer = Node(f"forward{k}", Kind.COMPUTE, (weight[0], before[0]), (s,), (weight[1], before[1]), compute_us)
        acts.append((make.add(layer._replace(op="aten.mm.default")), s))
    grad = acts[-1]
    for k in reversed(range(len(sizes))):
        weight = make.gathered(f"{k}b", shards[k], sizes[k]) if again else held[k]
        s, temporary = make.storage(acts_bytes), make.storage(temporary_bytes if k == 0 else 0)
        deps, use = (weight[0], grad[0], acts[k][0]), (weight[1], grad[1], acts[k][1])
        layer = Node(f"backward{k}", Kind.COMPUTE, deps, (s, temporary), use, compute_us, "aten.mm.default")
        grad = (make.add(layer), s)
    return make.problem("step", [grad], FSDP)


@st.composite
def whole_steps(draw: st.DrawFn) -> Problem:
    """Of one to five layers, bound by compute or by the network, with little or much memory in between."""
    sizes = draw(st.lists(st.integers(1, 40).map(lambda n: 16 * n), min_size=1, max_size=5))
    time_us, acts = draw(st.sampled_from((2.0, 30.0, 400.0))), draw(st.sampled_from((8, 200)))
    return whole_step(sizes, time_us, acts, draw(st.sampled_from((0, 500, 4000))), draw(st.booleans()))


# What the nodes of a problem compute, as text: the oracle for rewrites. It knows names, and nothing of the package.


def meanings(problem: Problem) -> dict[str, Any]:
    """Per node, what it stands for: a collective of something, a matmul of some things, or several things packed.

    Views, copies, waits and new buffers mean what they are made from; a collective of packed things means packed
    collectives; ``_part_i`` and ``_get_i`` take one out.
    """
    found: dict[str, Any] = {}
    for node in problem.nodes:
        names = [problem.nodes[u].name for u in node.deps]
        before = [found[name] for name in names]
        new = node.name.startswith(("bucket_", "again_"))
        if node.kind is Kind.COLLECTIVE:
            op = node.op.removesuffix("_coalesced")
            (what,) = (before,) if node.op != op else before
            found[node.name] = [(op, one) for one in what] if isinstance(what, list) else (op, what)
        elif node.kind is Kind.WAIT:
            (found[node.name],) = before
        elif new and "_in_" not in node.name and node.name.endswith("_in"):
            found[node.name] = [found[name] for name in sorted(names, key=_index)]
        elif new and ("_part_" in node.name or "_get_" in node.name):
            (packed,) = before
            found[node.name] = packed[_index(node.name)]
        elif new:
            (found[node.name],) = before
        else:
            found[node.name] = (node.name, *sorted(before, key=repr))
    return found


def _index(name: str) -> int:
    return int(name.rsplit("_", 1)[1])


LATENCY_US, US_PER_BYTE, COPY_US_PER_BYTE = 10.0, 0.25, 0.01


@dataclass(frozen=True)
class Wires:
    """Latency and rate; all_reduce passes everything twice; a copy takes its bytes."""

    latency_us: float = LATENCY_US

    def compute_us(self, work: Compute) -> float:
        return COPY_US_PER_BYTE * work.bytes

    def collective_us(self, work: Collective) -> float:
        twice = 2 if work.op.startswith("all_reduce") else 1
        return self.latency_us + twice * US_PER_BYTE * work.bytes


PRICES = Prices(Wires())


def check_promises(problem: Problem, found: Plan, prices: Prices = PRICES) -> None:
    """An order that can run, within the budget, as long as it says and no longer than without rewrites."""
    after, order = found.schedule.problem, list(found.schedule.order)
    assert found.schedule.fell_back is None
    assert violation(after, order) is None
    peak_bytes = max(peak_by_definition(problem, list(problem.original_order)))
    assert max(peak_by_definition(after, order)) <= peak_bytes + found.schedule.headroom_bytes
    step_us, without_us = step_by_definition(after, order), found.without.scheduled.step_us
    assert abs(step_us - found.schedule.scheduled.step_us) <= 1e-6 * step_us
    assert found.schedule.lower_bound_us * (1 - 1e-9) <= step_us <= without_us * (1 + 1e-9)
    assert after == apply(problem, found.rewrites, prices)


LAUNCH_US, FINISH_US = 5.0, 3.0


class OnHost(Wires):
    """As priced there, and what a launch and a wait take of the host."""

    def launch_us(self, work: Collective) -> float:
        return LAUNCH_US

    def finish_us(self, work: Collective) -> float:
        return FINISH_US


HOST_PRICES = Prices(OnHost())


def on_host(problem: Problem) -> Problem:
    """The same with a launch node in front of each collective, and a finish node in front of each wait."""
    nodes: list[Node] = []
    ids: list[int] = []
    for node in problem.nodes:
        deps = tuple(ids[u] for u in node.deps)
        if node.kind in (Kind.COLLECTIVE, Kind.WAIT):
            op, us = (LAUNCH, LAUNCH_US) if node.kind is Kind.COLLECTIVE else (FINISH, FINISH_US)
            nodes.append(Node(f"{node.name}.{op}", Kind.COMPUTE, deps, time_us=us, op=op))
            deps = (*deps, len(nodes) - 1)
        ids.append(len(nodes))
        nodes.append(node._replace(deps=deps, collective=None if node.collective is None else ids[node.collective]))
    return replace(problem, nodes=tuple(nodes))


def sharded(sizes: Sequence[Sequence[int]], compute_us: float = 30.0, reduces: bool = False) -> Problem:
    """A backward pass: each layer gathers its parameters, passes the gradient on, and reduces what it has computed.

    Args:
        sizes: Per layer, bytes of the shard of each parameter.
        compute_us: Of each matmul.
        reduces: A last all_reduce per layer, of one norm.
    """
    make = _Maker()
    shards = [[make.given(f"w{k}_{p}", n, pinned=True) for p, n in enumerate(layer)] for k, layer in enumerate(sizes)]
    acts, grad = [make.given(f"x{k}", 8) for k in range(len(sizes))], make.given("g", 8)
    ends = []
    for k, layer in enumerate(sizes):
        gathered = []
        for p, nbytes in enumerate(layer):
            full = nbytes * RANKS
            gathered.append(make.collective(f"gather{k}_{p}", "all_gather_into_tensor", shards[k][p], full, full))
        passed = make.storage(8)
        deps = (grad[0], *(v for v, _ in gathered))
        use = (grad[1], *(s for _, s in gathered))
        dgrad = make.add(Node(f"dgrad{k}", Kind.COMPUTE, deps, (passed,), use, compute_us, "aten.mm.default"))
        for p, nbytes in enumerate(layer):
            dw = make.storage(nbytes * RANKS)
            of = (grad[0], acts[k][0])
            wgrad = Node(f"wgrad{k}_{p}", Kind.COMPUTE, of, (dw,), (grad[1], acts[k][1]), compute_us, "aten.mm.default")
            source = (make.add(wgrad), dw)
            name, larger = f"scatter{k}_{p}", nbytes * RANKS
            ends.append(make.collective(name, "reduce_scatter_tensor", source, nbytes, larger))
        if reduces:
            norm = make.storage(4)
            v = make.add(Node(f"norm{k}", Kind.COMPUTE, (grad[0],), (norm,), (grad[1],), 2.0, "aten.sum"))
            ends.append(make.collective(f"reduce{k}", "all_reduce", (v, norm), 4, 4))
        grad = (dgrad, passed)
    return make.problem("sharded", [*ends, grad], FSDP)


@st.composite
def sharded_problems(draw: st.DrawFn) -> Problem:
    """Of one to four layers."""
    layer = st.lists(st.integers(1, 40), min_size=1, max_size=3)
    sizes = draw(st.lists(layer, min_size=1, max_size=4))
    return sharded(sizes, draw(st.sampled_from((2.0, 30.0, 200.0))), draw(st.booleans()))
