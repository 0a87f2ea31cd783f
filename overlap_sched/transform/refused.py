"""Which collectives stay as they are though rewrites of their kind were asked for, and why: for a plan's record."""

from collections import defaultdict
from collections.abc import Iterator

from overlap_sched.problem import NodeId, Problem
from overlap_sched.transform.members import Alike
from overlap_sched.transform.rewrites import Bucket, Stream
from overlap_sched.transform.trial import Refuses
from overlap_sched.transform.wanted import Wanted


def refused(problem: Problem, alike: Alike | None, wanted: Wanted, refuses: Refuses) -> tuple[str, ...]:
    """One sentence for each reason: the first collective that it is of, and how many more.

    Only what could otherwise be had is listed: of a bucket, collectives of a group that has several of one operator.
    """
    found = [*_not_moved(problem, wanted, refuses)]
    if alike is not None:
        found = [*_alone(problem, alike, wanted, refuses), *found]
    first: dict[str, str] = {}
    count: dict[str, int] = defaultdict(int)
    for name, why in found:
        reason = why.replace(repr(name), "")
        first.setdefault(reason, why)
        count[reason] += 1
    several = {reason: f" (The same of {number - 1:,} more.)" for reason, number in count.items() if number > 1}
    sentences = (f"{why}{several.get(reason, '')}" for reason, why in first.items())
    return (*sentences, *([] if alike is None else _of_several_types(problem, alike, wanted)))


def reductions(problem: Problem) -> list[NodeId]:
    """List what reduces in groups that gather, too: the two share a stream."""
    nodes = problem.nodes
    gathering = {nodes[v].group for v in problem.collectives if "gather" in nodes[v].op}
    return [v for v in problem.collectives if "reduce" in nodes[v].op and nodes[v].group in gathering]


def _not_moved(problem: Problem, wanted: Wanted, refuses: Refuses) -> Iterator[tuple[str, str]]:
    """Yield what stays on its own communicator."""
    for v in reductions(problem) if wanted.streams else ():
        name = problem.nodes[v].name
        if why := refuses(Stream(name)):
            yield name, why


def _alone(problem: Problem, alike: Alike, wanted: Wanted, refuses: Refuses) -> Iterator[tuple[str, str]]:
    """Yield what goes into no bucket."""
    for ids in _together(problem, wanted).values():
        for v in ids:
            name = problem.nodes[v].name
            if name not in alike and (why := refuses(Bucket((name,)))):
                yield name, why


def _of_several_types(problem: Problem, alike: Alike, wanted: Wanted) -> Iterator[str]:
    for (op, group), ids in _together(problem, wanted).items():
        kinds = list(dict.fromkeys(alike[name] for v in ids if (name := problem.nodes[v].name) in alike))
        if len(kinds) > 1:
            yield f"{op} of group {group!r} comes as {', '.join(kinds)}: a bucket has one type and one reduction."


def _together(problem: Problem, wanted: Wanted) -> dict[tuple[str, str], list[NodeId]]:
    """Collectives that might share a bucket, by operator and group."""
    found: dict[tuple[str, str], list[NodeId]] = defaultdict(list)
    for v in problem.collectives if wanted.forms else ():
        node = problem.nodes[v]
        if node.op in wanted.ops:
            found[node.op, node.group or ""].append(v)
    return {key: ids for key, ids in found.items() if len(ids) > 1}
