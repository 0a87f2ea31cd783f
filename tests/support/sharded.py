"""Sharded backward passes with bytes that fit: what rewrites are tried on, and prices by latency and rate."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Problem, Storage
from overlap_sched.cost.model import Collective, Compute
from overlap_sched.transform.prices import Prices

RANKS = 4
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


class _Maker:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.storages: list[Storage] = []
        self.ids: dict[str, int] = {}

    def storage(self, nbytes: int, pinned: bool = False) -> int:
        self.storages.append(Storage(nbytes, pinned))
        return len(self.storages) - 1

    def add(self, node: Node) -> int:
        self.nodes.append(node._replace(deps=tuple(sorted(node.deps))))
        self.ids[node.name] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def collective(
        self, name: str, op: str, source: tuple[int, int], result_bytes: int, larger: int
    ) -> tuple[int, int]:
        """Launch and wait: the wait, and the storage of the result."""
        dep, taken = source
        result = self.storage(result_bytes)
        us = PRICES.collective_us(op, larger, Group(RANKS, True))
        launch = self.add(Node(name, Kind.COLLECTIVE, (dep,), (result,), (taken,), us, op, "fsdp", bytes=larger))
        wait = Node(f"{name}_wait", Kind.WAIT, (launch,), (), (taken, result), collective=launch)
        return self.add(wait), result


def sharded(sizes: Sequence[Sequence[int]], compute_us: float = 30.0, reduces: bool = False) -> Problem:
    """A backward pass: each layer gathers its parameters, passes the gradient on, and reduces what it has computed.

    Args:
        sizes: Per layer, bytes of the shard of each parameter.
        compute_us: Of each matmul.
        reduces: A last all_reduce per layer, of one norm.
    """
    make = _Maker()
    shards = {}
    for k, layer in enumerate(sizes):
        for p, nbytes in enumerate(layer):
            s = make.storage(nbytes, pinned=True)
            shards[k, p] = (make.add(Node(f"w{k}_{p}", Kind.INPUT, (), (s,))), s)
    acts = []
    for k in range(len(sizes)):
        s = make.storage(8)
        acts.append((make.add(Node(f"x{k}", Kind.INPUT, (), (s,))), s))
    s = make.storage(8)
    grad = (make.add(Node("g", Kind.INPUT, (), (s,))), s)
    ends = []
    for k, layer in enumerate(sizes):
        gathered = []
        for p, nbytes in enumerate(layer):
            full = nbytes * RANKS
            gathered.append(make.collective(f"gather{k}_{p}", "all_gather_into_tensor", shards[k, p], full, full))
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
    ends.append(grad)
    make.add(Node("output", Kind.OUTPUT, tuple(v for v, _ in ends), (), tuple(s for _, s in ends)))
    return Problem("sharded", tuple(make.nodes), tuple(make.storages), {"fsdp": Group(RANKS, True)})


@st.composite
def sharded_problems(draw: st.DrawFn) -> Problem:
    """Of one to four layers."""
    layer = st.lists(st.integers(1, 40), min_size=1, max_size=3)
    sizes = draw(st.lists(layer, min_size=1, max_size=4))
    return sharded(sizes, draw(st.sampled_from((2.0, 30.0, 200.0))), draw(st.booleans()))
