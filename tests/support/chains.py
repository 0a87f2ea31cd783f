"""Small forward passes with tensor parallelism, to be listed side by side, and all ways to list them."""

from collections.abc import Callable

from llama_repro.generate.chains import Chains
from overlap_sched import Group, Kind, Node, Problem, Storage

SIZE = 4

LISTINGS: dict[str, Callable[[Chains], Problem]] = {
    "one by one": Chains.one_by_one,
    "lock-step": Chains.lock_step,
    "stage by stage": Chains.stage_by_stage,
    "merged": lambda chains: chains.merged(1),
    "shuffled": lambda chains: chains.shuffled(1),
}


def forward(layers: int, compute_us: float = 50.0, tp_us: float = 20.0, gather_us: float = 10.0) -> Problem:
    """A chain: each layer gathers its weight, multiplies, adds up over the tensor-parallel ranks, and normalises.

    Every product is saved for the backward pass. No time is hidden by any order: each layer needs the one before it.
    """
    nodes: list[Node] = []
    storages: list[Storage] = []

    def new(size: int, pinned: bool = False) -> int:
        storages.append(Storage(size, pinned))
        return len(storages) - 1

    def add(node: Node) -> int:
        nodes.append(node)
        return len(nodes) - 1

    weights = []
    for k in range(layers):
        s = new(1, pinned=True)
        weights.append((add(Node(f"w{k}", Kind.INPUT, alloc=(s,))), s))
    held = new(SIZE, pinned=True)
    v = add(Node("tokens", Kind.INPUT, alloc=(held,)))
    kept = []
    for k, (weight, shard) in enumerate(weights):
        full, product, total, normal = new(8), new(SIZE), new(SIZE), new(SIZE)
        launch = add(Node(f"gather{k}", Kind.COLLECTIVE, (weight,), (full,), (shard,), gather_us, "gather", "fsdp"))
        ready = add(Node(f"full{k}", Kind.WAIT, (launch,), (), (shard, full), collective=launch))
        mm = add(Node(f"mm{k}", Kind.COMPUTE, (ready, v), (product,), (full, held), compute_us, "mm"))
        add_up = add(Node(f"sum{k}", Kind.COLLECTIVE, (mm,), (total,), (product,), tp_us, "all_reduce", "tp"))
        done = add(Node(f"done{k}", Kind.WAIT, (add_up,), (), (product, total), collective=add_up))
        v = add(Node(f"norm{k}", Kind.COMPUTE, (done,), (normal,), (total,), compute_us / 10, "norm"))
        held = normal
        kept.append((mm, product))
    deps = (*(mm for mm, _ in kept), v)
    uses = (*(product for _, product in kept), held)
    nodes.append(Node("output", Kind.OUTPUT, deps, (), uses))
    groups = {"fsdp": Group(8, intra_node=False), "tp": Group(8, intra_node=True)}
    return Problem(f"forward{layers}", tuple(nodes), tuple(storages), groups)
