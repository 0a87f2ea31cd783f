"""A problem without names: what is left is its shape, its sizes and its times.

Kept: kinds, dependencies, storages, times, operations, bytes, sizes of groups, and the operators of collectives (they
are torch's own, and contention goes by them). Replaced: every other name. The order that is found stays the same.
"""

from collections.abc import Iterable
from dataclasses import replace

from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.problem.node import ANY_GROUP
from overlap_sched.problem.pins import pinned

_NAME = "redacted"


def redacted(problem: Problem) -> Problem:
    """The problem with neutral names: nodes ``n0``, ``n1``, ..., groups ``group0``, ..., and so on."""
    links = _renamed("link", problem.contention.links.values())
    named = [name for node in problem.nodes for name in node.launches if name != ANY_GROUP]
    groups = {ANY_GROUP: ANY_GROUP} | _renamed("group", [*problem.groups, *named])
    modules = _renamed("module", [node.module for node in problem.nodes])
    marks = _renamed_pins(problem)
    ops = {problem.nodes[v].op for v in problem.collectives}
    slowdown, stretch = (
        {begin: factor for begin, factor in factors.items() if any(op.startswith(begin) for op in ops)}
        for factors in (problem.contention.slowdown, problem.contention.stretch)  # another one could be anything
    )
    return replace(
        problem,
        name=_NAME,
        nodes=tuple(
            node._replace(
                name=f"n{v}",
                op=_op(node),
                group=None if node.group is None else groups[node.group],
                launches=tuple(groups[name] for name in node.launches),
                module=modules[node.module] if node.module else "",
                marks=tuple(marks[text] for text in node.marks if text in marks),
            )
            for v, node in enumerate(problem.nodes)
        ),
        groups={groups[name]: group for name, group in problem.groups.items()},
        contention=replace(
            problem.contention,
            slowdown=slowdown,
            links={groups[name]: links[link] for name, link in problem.contention.links.items()},
            stretch=stretch,
        ),
    )


def _renamed_pins(problem: Problem) -> dict[str, str]:
    """Pins of nodes: those that name a module name the node of it that they hold to; without one they mean nothing."""
    renamed = {}
    for one in pinned(problem, ()):
        text, rule = one.pin.text, one.pin.rule
        if rule.startswith("not ") and one.anchors:
            renamed[text] = f"{rule} n{one.anchors[0 if rule == 'not before' else -1]}"
        elif not rule.startswith("not "):
            renamed[text] = text
    return renamed


def _op(node: Node) -> str:
    if node.kind is Kind.COLLECTIVE or not node.op:
        return node.op
    return node.kind.value


def _renamed(what: str, names: Iterable[str]) -> dict[str, str]:
    """New names that sort as the old ones do."""
    old = sorted(set(names))
    width = len(str(len(old) - 1))
    return {name: f"{what}{k:0{width}}" for k, name in enumerate(old)}
