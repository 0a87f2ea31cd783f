"""Whole steps whose weights are gathered for the forward and again, cast anew, for the backward; as problems."""

from collections.abc import Sequence

from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Problem, Storage
from tests.support.sharded import PRICES, RANKS

CAST = "prims.convert_element_type.default"


class _Maker:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.storages: list[Storage] = []

    def storage(self, nbytes: int, pinned: bool = False) -> int:
        self.storages.append(Storage(nbytes, pinned))
        return len(self.storages) - 1

    def add(self, node: Node) -> int:
        self.nodes.append(node._replace(deps=tuple(sorted(set(node.deps)))))
        return len(self.nodes) - 1

    def gathered(self, name: str, shard: tuple[int, int], nbytes: int) -> tuple[int, int]:
        """Cast, gathered and waited for: the wait, and the storage of the result."""
        cast, full = self.storage(nbytes), self.storage(nbytes * RANKS)
        v = self.add(Node(f"cast{name}", Kind.COMPUTE, (shard[0],), (cast,), (shard[1],), 0.5, CAST))
        op, larger = "all_gather_into_tensor", nbytes * RANKS
        us = PRICES.collective_us(op, larger, Group(RANKS, True))
        launch = self.add(Node(f"gather{name}", Kind.COLLECTIVE, (v,), (full,), (cast,), us, op, "fsdp", bytes=larger))
        return self.add(Node(f"wait{name}", Kind.WAIT, (launch,), (), (cast, full), collective=launch)), full


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
    shards = []
    for k, nbytes in enumerate(sizes):
        s = make.storage(nbytes, pinned=True)
        shards.append((make.add(Node(f"w{k}", Kind.INPUT, (), (s,))), s))
    s = make.storage(acts_bytes)
    acts = [(make.add(Node("x", Kind.INPUT, (), (s,))), s)]
    held = []
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
    make.add(Node("output", Kind.OUTPUT, (grad[0],), (), (grad[1],)))
    return Problem("step", tuple(make.nodes), tuple(make.storages), {"fsdp": Group(RANKS, True)})


@st.composite
def whole_steps(draw: st.DrawFn) -> Problem:
    """Of one to five layers, bound by compute or by the network, with little or much memory in between."""
    sizes = draw(st.lists(st.integers(1, 40).map(lambda n: 16 * n), min_size=1, max_size=5))
    time_us, acts = draw(st.sampled_from((2.0, 30.0, 400.0))), draw(st.sampled_from((8, 200)))
    return whole_step(sizes, time_us, acts, draw(st.sampled_from((0, 500, 4000))), draw(st.booleans()))
