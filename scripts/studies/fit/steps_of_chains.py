"""Forward and backward of a chain, by hand: what recomputation is tested on."""

from collections.abc import Collection, Sequence

from overlap_sched.problem import Kind, Node, Problem, Storage


def chain(sizes: Sequence[int], times: Sequence[float] | None = None, saved: Collection[int] | None = None) -> Problem:
    """``f0`` to ``fn`` make values of these sizes, each of the one before; ``bn`` to ``b0`` take gradient and value.

    ::

        weight, tangents_1, f0, ..., fn, bn (fn-1 and gradient) ..., b0 (gradient), output

    ``bk`` takes the value of ``fk-1`` and the gradient of ``fk``, and makes the gradient of ``fk-1``, one byte large.
    Nodes take 10 us, or ``times`` (of ``f0`` to ``fn``). Backward takes the values in ``saved``, by default all.
    """
    n = len(sizes)
    nodes = [Node("weight", Kind.INPUT, alloc=(0,)), Node("tangents_1", Kind.INPUT, alloc=(1,))]
    storages = [Storage(1, pinned=True), Storage(1)]
    made: list[int] = []
    for k, size in enumerate(sizes):
        storages.append(Storage(size))
        before = (made[-1],) if made else ()
        deps = (len(nodes) - 1,) if made else (0,)
        time_us = times[k] if times else 10.0
        made.append(len(storages) - 1)
        nodes.append(Node(f"f{k}", Kind.COMPUTE, deps, (made[-1],), (0, *before), time_us, f"f{k}"))
    gradient, maker = 1, 1
    for k in reversed(range(n)):
        storages.append(Storage(1))
        value = (made[k - 1],) if k and (saved is None or k - 1 in saved) else ()
        deps = tuple(sorted({maker, *((1 + k,) if k else (0,)), n + 1}))
        nodes.append(Node(f"b{k}", Kind.COMPUTE, deps, (len(storages) - 1,), (gradient, *value), 10.0, f"b{k}"))
        gradient, maker = len(storages) - 1, len(nodes) - 1
    nodes.append(Node("output", Kind.OUTPUT, (maker,), (), (gradient,)))
    return Problem("chain", tuple(nodes), tuple(storages))
