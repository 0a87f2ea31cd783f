"""Collectives of several process groups at once: how often they run together, and whether an order may let them.

Groups that share more than one rank run kernels of two communicators on the same devices at the same time. Nothing
orders those (NCCL user guide, "Using multiple NCCL communicators concurrently"), and RCCL hangs with some
(ROCm/rccl#2191, openxla/xla#47467). Groups whose ranks are not known are taken to share all. Shares no code with the
scheduler.
"""

from collections.abc import Callable, Sequence

from overlap_sched.judge.replay import Replay
from overlap_sched.options import Concurrent
from overlap_sched.problem import ANY_GROUP, Kind, Node, Problem

_ROUNDING = 1e-9
"""Relative to the step: overlaps below this come from adding up floating-point numbers."""


def together(problem: Problem, timeline: Replay) -> int:
    """Pairs of collectives of groups that share more than one rank and run at the same time in a replay."""
    known = [v for v, node in enumerate(problem.nodes) if (groups := _groups_of(node)) and ANY_GROUP not in groups]
    if len({name for v in known for name in _groups_of(problem.nodes[v])}) < 2:
        return 0
    least_us = _ROUNDING * timeline.step_us
    spans = sorted((timeline.start_us[v], timeline.finish_us[v], v) for v in known)
    meet, pairs = _meeting(problem, "disjoint"), 0
    running: list[tuple[float, int]] = []
    for start_us, finish_us, v in spans:
        running = [(end_us, u) for end_us, u in running if end_us > start_us + least_us]
        if finish_us > start_us + least_us:
            pairs += sum(meet(u, v) for _, u in running)
            running.append((finish_us, v))
    return pairs


def together_violation(
    problem: Problem, order: Sequence[int], concurrent: Concurrent, as_originally: bool = True
) -> str | None:
    """The first launch of a valid order while a collective is in flight that it must stay apart from, or ``None``.

    A collective is in flight from its launch to the first of its waits; what communicates itself, or may, only while it
    runs. With ``as_originally`` two that are in flight together in the original order may be.
    """
    if concurrent == "any":
        return None
    nodes, meet, ended = problem.nodes, _meeting(problem, concurrent), completions(problem)
    ends = [v if node.launches else len(nodes) for v, node in enumerate(nodes)]
    for w in sorted(ended, reverse=True):  # the first wait comes last
        for launch in ended[w]:
            ends[launch] = w
    in_flight: list[int] = []
    for v in order:
        node, groups = nodes[v], _groups_of(nodes[v])
        for u in in_flight if groups else ():
            if meet(u, v) and not (as_originally and u < ends[v] and v < ends[u]):
                runs = "is launched" if node.kind is Kind.COLLECTIVE else "communicates"
                return (
                    f"{node.name} ({', '.join(groups)}) {runs} while {nodes[u].name} ({nodes[u].group}) is in "
                    f"flight: concurrent_groups={concurrent!r} keeps them apart"
                )
        in_flight = [u for u in in_flight if u not in ended.get(v, ())]
        if node.kind is Kind.COLLECTIVE:
            in_flight.append(v)
    return None


def completions(problem: Problem) -> dict[int, list[int]]:
    """Per node, the collectives that the program waits for there: a part waits where the node behind it runs."""
    nodes = problem.nodes
    found: dict[int, list[int]] = {}
    for w, node in enumerate(nodes):
        if node.collective is not None:
            behind = (v for v in range(w + 1, len(nodes)) if w in nodes[v].deps)
            found.setdefault(next(behind, w) if node.op == "part" else w, []).append(node.collective)
    return found


def _groups_of(node: Node) -> tuple[str, ...]:
    return (node.group or "",) if node.kind is Kind.COLLECTIVE else tuple(dict.fromkeys(node.launches))


def _meeting(problem: Problem, concurrent: Concurrent) -> Callable[[int, int], bool]:
    """Return a test of whether what two nodes launch must not be in flight together."""
    nodes = problem.nodes
    ranks = {name: frozenset(group.ranks) for name, group in problem.groups.items()}

    def meet(u: int, v: int) -> bool:
        pairs = [(a, b) for a in _groups_of(nodes[u]) for b in _groups_of(nodes[v]) if a != b]
        return any(concurrent == "one" or share(ranks.get(a), ranks.get(b)) for a, b in pairs)

    def share(one: frozenset[int] | None, other: frozenset[int] | None) -> bool:
        return not one or not other or len(one & other) > 1

    return meet
