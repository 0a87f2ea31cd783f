"""A small sharded backward pass, whose best orders are known by hand."""

from dataclasses import replace

from overlap_sched import Group, Kind, Node, Problem, Storage


def layers(count: int) -> Problem:
    """A backward pass of `count` layers, sharded: gather a weight, two matmuls, scatter the gradient."""
    nodes: list[Node] = [Node("g", Kind.INPUT, alloc=(0,))]
    storages = [Storage(4)]
    kept: list[int] = []

    def new(size: int, pinned: bool = False) -> int:
        storages.append(Storage(size, pinned))
        return len(storages) - 1

    def add(
        name: str, kind: Kind, deps: list[int], alloc: list[int], use: list[int], us: float = 0.0, **more: object
    ) -> int:
        nodes.append(Node(name, kind, tuple(deps), tuple(alloc), tuple(use), us, **more))  # type: ignore[arg-type]
        return len(nodes) - 1

    weights = [(add(f"w{k}", Kind.INPUT, [], [s := new(1, True)], []), s) for k in range(count)]
    acts = [(add(f"x{k}", Kind.INPUT, [], [s := new(4)], []), s) for k in range(count)]
    grad, gs = 0, 0
    grads = []
    for k, ((w, ws), (x, xs)) in enumerate(zip(weights, acts, strict=True)):
        full, dx, dw, ds = new(8), new(4), new(8), new(1)
        launch = add(f"gather{k}", Kind.COLLECTIVE, [w], [full], [ws], 30.0, op="all_gather_into_tensor", group="fsdp")
        ready = add(f"full{k}", Kind.WAIT, [launch], [], [ws, full], collective=launch)
        dgrad = add(f"dgrad{k}", Kind.COMPUTE, [ready, grad], [dx], [full, gs], 40.0)
        wgrad = add(f"wgrad{k}", Kind.COMPUTE, [x, grad], [dw], [xs, gs], 40.0)
        scatter = add(
            f"scatter{k}", Kind.COLLECTIVE, [wgrad], [ds], [dw], 30.0, op="reduce_scatter_tensor", group="fsdp"
        )
        grads.append(add(f"grad{k}", Kind.WAIT, [scatter], [], [dw, ds], collective=scatter))
        kept.append(ds)
        grad, gs = dgrad, dx
    add("output", Kind.OUTPUT, [grad, *grads], [], [gs, *kept])
    return Problem(f"layers{count}", tuple(nodes), tuple(storages), {"fsdp": Group(8, True)})


def large_layers(count: int, times: int = 1) -> Problem:
    """The same with storages of some MiB (so many times): each has its own place in a segment."""
    problem = layers(count)
    storages = tuple(s._replace(bytes=s.bytes * times * 3 * 2**20 // 2) for s in problem.storages)
    return replace(problem, storages=storages)
