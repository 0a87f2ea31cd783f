"""Are pins kept? Read anew from their text, and judged by what they mean; shares no code with what keeps them."""

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import NamedTuple

from overlap_sched.judge.together import completions
from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.problem.sizes import size_bytes


class _Asked(NamedTuple):
    """The words of a pin, and the nodes that it is about."""

    text: str
    words: list[str]
    about: list[int]


def pin_violation(problem: Problem, order: Sequence[int], pins: Iterable[str]) -> str | None:
    """The first pin that a valid order breaks, of those given and those that nodes have, or ``None``."""
    position = [0] * len(order)
    for at, v in enumerate(order):
        position[v] = at
    for asked in (*(_given(problem, text) for text in pins), *_marked(problem)):
        broken = _broken(problem, order, position, asked)
        if broken:
            return f"pin {asked.text!r} is broken: {broken}"
    return None


def _given(problem: Problem, text: str) -> _Asked:
    rule, _, about = text.partition(":")
    words = about.split()
    module = words.pop() if "in" in words and words[-1] != "in" else "*"
    pattern = words[0] if words and words[0] != "in" else "*"
    found = [
        v
        for v, node in enumerate(problem.nodes)
        if (fnmatchcase(node.op, pattern) or fnmatchcase(node.name, pattern)) and _inside(node, module)
    ]
    return _Asked(text, rule.split(), found)


def _marked(problem: Problem) -> Iterator[_Asked]:
    found: dict[tuple[str, str], list[int]] = {}
    for v, node in enumerate(problem.nodes):
        for text in node.marks:
            alone = text.split()[0] in ("together", "as")
            found.setdefault((text, node.module if alone else ""), []).append(v)
    for (text, _), nodes in found.items():
        yield _Asked(text, text.split(), nodes)


def _inside(node: Node, module: str) -> bool:
    return fnmatchcase(node.module, module) or fnmatchcase(node.module, f"{module}.*")


def _broken(problem: Problem, order: Sequence[int], position: Sequence[int], asked: _Asked) -> str:
    nodes, words = problem.nodes, asked.words
    launches = sorted((v for v in asked.about if nodes[v].kind is Kind.COLLECTIVE), key=position.__getitem__)
    if words[0] == "as":
        inside = [v for v in asked.about if nodes[v].kind not in (Kind.INPUT, Kind.OUTPUT)]
        for u, v in pairwise(inside):
            if position[u] > position[v]:
                return f"{nodes[v].name} runs before {nodes[u].name}"
    elif words[0] == "together" and launches:
        between = order[position[launches[0]] : position[launches[-1]] + 1]
        stranger = next((v for v in between if v not in launches), None)
        if stranger is not None:
            return f"{nodes[stranger].name} runs between {nodes[launches[0]].name} and {nodes[launches[-1]].name}"
    elif words[0] == "not":
        there = [position[v] for v, node in enumerate(nodes) if _computes(node) and _named(node, words[2])]
        timed = [at for at in there if nodes[order[at]].time_us > 0] or there
        for v in launches if timed else ():
            if words[1] == "before" and position[v] < min(timed):
                return f"{nodes[v].name} is launched before anything of {words[2]} has run"
            if words[1] == "after" and position[v] > max(timed):
                return f"{nodes[v].name} is launched after all of {words[2]}"
    elif words[0] in ("in", "apart"):
        return _in_flight(problem, order, set(launches), size_bytes(words[-1], 0) if words[0] == "in" else None)
    return ""


def _computes(node: Node) -> bool:
    return node.kind is Kind.COMPUTE and node.op not in ("launch", "finish")


def _named(node: Node, what: str) -> bool:
    return _inside(node, what) or node.name == what


def _in_flight(problem: Problem, order: Sequence[int], counted: set[int], most_bytes: int | None) -> str:
    """Say what is wrong with what is in flight; no limit: one at a time."""
    flying: dict[int, int] = {}
    ended = completions(problem)
    for v in order:
        node = problem.nodes[v]
        if v in counted:
            flying[v] = node.bytes
            if most_bytes is None and len(flying) > 1:
                return f"{node.name} is launched while {problem.nodes[next(iter(flying))].name} is in flight"
            if most_bytes is not None and sum(flying.values()) > most_bytes:
                return f"{sum(flying.values())} bytes are in flight behind {node.name}"
        for launch in ended.get(v, ()):
            flying.pop(launch, None)
    return ""
