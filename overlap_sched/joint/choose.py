"""What need not be kept for backward, along torch's own order: choices of :mod:`overlap_sched.fit`, as marks."""

from overlap_sched.fit.emit import rewrites_of
from overlap_sched.fit.greedy import Greedy
from overlap_sched.fit.state import LiveState
from overlap_sched.joint.cut import Whole
from overlap_sched.transform.rewrites import Recompute


def chosen(whole: Whole, limit_bytes: int, high: float) -> frozenset[str]:
    """Names of the nodes of forward that run again in backward, so that what is live fits into a limit, or nearly.

    Args:
        whole: Both halves.
        limit_bytes: What is live at most.
        high: See :class:`overlap_sched.fit.greedy.Greedy`.
    """
    state = LiveState(whole.problem, limit_bytes, whole.may_run_again)
    Greedy(state, None, None, ("recompute",), 0.0, high).run()
    late = set(whole.late)
    again: set[str] = set()
    for one in rewrites_of(state):
        if isinstance(one, Recompute) and late.intersection(one.users):
            again.update(name for name in one.nodes if name not in whole.late)
            late.update(one.new_name(name) for name in one.nodes)
    return frozenset(_with_inlined(whole, again))


def _with_inlined(whole: Whole, again: set[str]) -> set[str]:
    """And what lives in registers only, of which these are made: torch would save it in their place."""
    nodes, found = whole.problem.nodes, set(again)
    todo = [v for v, node in enumerate(nodes) if node.name in again]
    while todo:
        for v in nodes[todo.pop()].deps:
            name = nodes[v].name
            if name in whole.in_registers and name in whole.may_run_again and name not in found:
                found.add(name)
                todo.append(v)
    return found
