"""Which gathers to keep for their next use, and which to gather again: what fits into memory, and what may pay.

::

    gather w ... mm | rest of forward ..................... | gather_1 w ... mm       gathered twice
    gather w ... mm | w is held here, where it has room ... |              mm         kept
    gather w ... mm | w is held here ...................... |              mm         gathered once
    gather w ... mm | others have its room ................ | again_w ...  mm         gathered again

Between two uses lies the *gap*, in which the gathered tensor is held or is not. In an order, to keep costs its bytes in
the gap alone, and to gather again frees them there: a range of the live profile.

To keep saves a gather; where there is room, those come first that take most time for what they hold. To gather again is
tried where the memory of an order is at its peak: what is freed there may let others be launched in time. Both are
tried from the original order and from the best: their peaks differ.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from overlap_sched.problem import Kind, NodeId, Order, Position, Problem
from overlap_sched.problem.precedence import find_reachable, positions
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.apply import Alike, ProblemMaker, is_view
from overlap_sched.transform.recipes import Single, gather_key
from overlap_sched.transform.rewrites import Keep, Recompute, Regather, Rewrite
from overlap_sched.transform.search import RewriteSearch

Done = TypeVar("Done", Keep, Regather)


class GatherGap(NamedTuple, Generic[Done]):
    """What may be done about one gap between two uses of what is gathered.

    Attributes:
        rewrite: Keep it there, or gather it again behind it.
        begin, end: The positions of an order between which it is held or not: the first without it, and the next with.
        bytes: Of the gathered tensor; 0 where it is not counted.
        time_us: Of the gather that goes or comes.
    """

    rewrite: Done
    begin: Position
    end: Position
    bytes: int
    time_us: float


def try_keeping(search: RewriteSearch, order: Order) -> None:
    """Keep gathers for their next use, as many as an order has room for."""
    problem = search.problem
    groups = gathered_twice(problem, search.alike)
    for start in (problem.original_order, order) if groups else ():
        gaps = sorted(to_keep(problem, start, groups), key=lambda gap: -gap.time_us / max(gap.bytes, 1))
        kept = admitted(problem, start, [gap for gap in gaps if not search.refuses(gap.rewrite)], search.budget_bytes)
        if kept:
            search.attempt(f"{len(kept)} gathers kept for their next use", chained(kept), start)


def try_gathering_again(search: RewriteSearch, order: Order) -> None:
    """Gather again, behind the peak, what is held there, with casts that are made for it; on top of the best so far."""
    problem = search.problem
    best = () if search.state.best is None else search.state.best.rewrites
    held = {one.first for one in best if isinstance(one, Keep)}
    for start in (problem.original_order, order):
        peak = int(LiveRanges(problem).profile(start).argmax())
        gaps = [gap for gap in to_gather_again(problem, start, search.alike) if gap.begin <= peak < gap.end]
        gaps = [gap for gap in gaps if gap.rewrite.gather not in held and not search.refuses(gap.rewrite)]
        gaps = sorted(gaps, key=lambda gap: gap.time_us / max(gap.bytes, 1))
        again: list[Rewrite] = []
        for gap in gaps:
            casts = casts_of(problem, gap.rewrite.gather)
            again += [gap.rewrite, *([Recompute(casts, (gap.rewrite.name,))] if casts else [])]
        if again:
            search.attempt(f"{len(gaps)} gathered again behind the peak", (*again, *best), start)


def gathered_twice(problem: Problem, alike: Alike | None) -> list[list[NodeId]]:
    """Gathers of the same, where there are several: each in its original order. Linear.

    Args:
        problem: What they are of.
        alike: Only those that are in it can be rewritten, and only what it calls alike is; ``None``: it is not known.
    """
    draft, found = ProblemMaker(problem), defaultdict[tuple[object, ...], list[NodeId]](list)
    for one in _gathers(draft, alike):
        label = "" if alike is None else alike[draft.name(one.launch)]
        found[*gather_key(draft, one), label].append(one.launch)
    return [ids for ids in found.values() if len(ids) > 1]


def _gathers(draft: ProblemMaker, alike: Alike | None) -> list[Single[NodeId]]:
    return draft.singles(lambda node: "all_gather" in node.op and (alike is None or node.name in alike))


def to_keep(problem: Problem, order: Sequence[NodeId], groups: Sequence[Sequence[NodeId]]) -> list[GatherGap[Keep]]:
    """Gaps of an order in which could be held what is gathered again behind them.

    Args:
        problem: What the order is of.
        order: A valid one.
        groups: Gathers of the same (:func:`gathered_twice`).
    """
    nodes, position, users = problem.nodes, positions(order), LiveRanges(problem).users
    gaps = []
    for before, v in (pair for ids in groups for pair in pairwise(ids)):
        held = nodes[before].alloc
        last = max((position[w] for s in held for w in users[s]), default=position[before])
        if position[before] > position[v]:
            continue  # an order that gathers them the other way round
        begin = min(last + 1, position[v])
        nbytes = sum(problem.storages[s].bytes for s in held)
        gaps.append(GatherGap(Keep(nodes[before].name, nodes[v].name), begin, position[v], nbytes, nodes[v].time_us))
    return gaps


def chained(gaps: Sequence[GatherGap[Keep]]) -> list[Keep]:
    """Make what is kept in one gap after the other that of the first gather: the later ones are gone."""
    stands_for: dict[str, str] = {}
    keeps = []
    for gap in sorted(gaps, key=lambda gap: gap.end):
        first = stands_for.get(gap.rewrite.first, gap.rewrite.first)
        stands_for[gap.rewrite.again] = first
        keeps.append(Keep(first, gap.rewrite.again))
    return keeps


def to_gather_again(problem: Problem, order: Sequence[NodeId], alike: Alike | None) -> list[GatherGap[Regather]]:
    """The longest gap between two uses of each gathered tensor, where it could be gathered again behind it.

    Not where its uses cannot be told apart by views made again.
    """
    nodes, position, users, gaps = problem.nodes, positions(order), LiveRanges(problem).users, []

    def views_between(late: Sequence[NodeId], views: Collection[NodeId]) -> set[NodeId]:
        return find_reachable(late, lambda v: [u for u in nodes[v].deps if u in views])

    for one in _gathers(ProblemMaker(problem), alike):
        if not (launch := nodes[one.launch]).alloc:
            continue
        (held,) = launch.alloc
        views = {v for v in users[held] if is_view(nodes[v])}
        uses = sorted((v for v in users[held] if v not in views and v not in one.waits), key=position.__getitem__)
        if len(uses) < 2 or problem.storages[held].pinned or any(nodes[v].kind is not Kind.COMPUTE for v in uses):
            continue
        length, k = max((position[w] - position[u], k) for k, (u, w) in enumerate(pairwise(uses), start=1))
        late, through = uses[k:], views_between(uses[k:], views)
        takes = set(one.waits) | through
        if length > 1 and all(takes.intersection(nodes[v].deps) for v in late):
            names = (tuple(nodes[v].name for v in sorted(ids)) for ids in (late, through))
            begin, end = position[uses[k - 1]] + 1, position[late[0]]
            rewrite = Regather(launch.name, *names)
            gaps.append(GatherGap(rewrite, begin, end, problem.storages[held].bytes, launch.time_us))
    return gaps


def casts_of(problem: Problem, gather: str) -> tuple[str, ...]:
    """List what a gather's input is cast by, for it alone: by name, each behind what it takes."""
    draft = ProblemMaker(problem)
    one, casts = draft.single(gather), list[str]()
    v, user = one.sources[0], one.launch
    while draft.cast(v) is not None and set(draft.users(v)) <= {user, draft.host_node(one.launch)}:
        casts.insert(0, draft.node(v).name)
        v, user = draft.node(v).deps[0], v
    return tuple(casts)


def admitted(
    problem: Problem, order: Sequence[NodeId], gaps: Sequence[GatherGap[Keep]], budget_bytes: int
) -> list[GatherGap[Keep]]:
    """Admit those of the gaps, one after the other, in which an order has room for what is held there."""
    profile = LiveRanges(problem).profile(order)
    taken = []
    for gap in gaps:
        room = profile[gap.begin : gap.end]
        if gap.begin == gap.end or int(room.max()) + gap.bytes <= budget_bytes:
            room += gap.bytes
            taken.append(gap)
    return taken
