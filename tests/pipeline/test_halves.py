"""A backward in two: what W reads is there, as it is in the whole, and it is as little as can be kept."""

from dataclasses import replace
from itertools import product

from hypothesis import assume, given
from hypothesis import strategies as st

from overlap_sched.pipeline.halves import find_input_gradients, halve_backward
from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.problem.precedence import find_reachable
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, rules

OPS = ("aten.add.Tensor", "aten.mm.default", "fused.step", "prims.cast.default")


def writes(node: Node) -> bool:
    return node.kind is Kind.COMPUTE and not node.alloc and node.time_us > 0


@st.composite
def backwards(draw: st.DrawFn, most: int) -> tuple[Problem, int, tuple[Problem, Problem]]:
    """A graph of operators that may run again and others, one of its nodes, and its halves."""
    problem, shift, nodes = draw(problems(most)), draw(st.integers(0, 3)), list[Node]()
    for v, node in enumerate(problem.nodes):
        if node.kind is Kind.COMPUTE:
            us = 1.0 if len(node.deps) > 1 and not node.alloc else node.time_us
            node = node._replace(op=OPS[(v + shift) % 4], flops=int((v + shift) % 4 == 1), time_us=us)
        touched = [u for u, one in enumerate(nodes) if not set(node.use).isdisjoint((*one.use, *one.alloc))]
        ordered = [u for u in touched if writes(node) or writes(nodes[u])]
        nodes.append(node._replace(deps=tuple(sorted({*node.deps, *ordered}))))
    made = [v for v, node in enumerate(nodes) if node.kind not in (Kind.INPUT, Kind.OUTPUT)]
    assume(made)
    if nodes[-1].kind is not Kind.OUTPUT:
        nodes.append(Node("output", Kind.OUTPUT, (made[-1],), use=nodes[made[-1]].alloc))
    problem, last = replace(problem, nodes=tuple(nodes)), draw(st.sampled_from(made))
    try:
        return problem, last, halve_backward(problem, last)
    except ValueError:
        return problem, last, (problem, problem)


def run(problem: Problem, given: dict[int, int] | None = None) -> dict[int, int]:
    """What is in each storage at the end; a KeyError where something is read that is not there."""
    held = dict(given or {})
    for node in problem.nodes:
        read = tuple(held[s] for s in node.use)
        if node.kind is not Kind.INPUT or given is None:
            held |= {s: hash((node.name, k, read)) for k, s in enumerate(node.use if writes(node) else node.alloc)}
    return held


def numbers(whole: Problem, half: Problem) -> dict[int, int]:
    """Per storage of a half, which one it is of the whole."""
    alloc = {node.name: node.alloc for node in whole.nodes}
    alloc |= {f"{whole.nodes[v].name}.{s}": (s,) for s, v in enumerate(whole.maker)}
    return {s: t for node in half.nodes for s, t in zip(node.alloc, alloc.get(node.name, ()), strict=True)}


def check_halves(problem: Problem, first: Problem, second: Problem) -> None:
    """I, then W from nothing but what I returns; what is gathered again is waited for before it is read."""
    (ahead, behind), made = (numbers(problem, one) for one in (first, second)), run(first)
    kept = {ahead[s]: made[s] for s in first.nodes[-1].use}
    found = run(second, {s: kept[behind[s]] for node in second.nodes if node.kind is Kind.INPUT for s in node.alloc})
    whole, end = run(problem), second.nodes[-1]
    assert [found[s] for s in end.use] == [whole[behind[s]] for s in end.use]
    for launch, waits in second.waits.items():
        for v in second.successors[launch]:
            reads = not set(second.nodes[v].use).isdisjoint(second.nodes[launch].alloc)
            if reads and second.nodes[v].kind not in (Kind.WAIT, Kind.OUTPUT):
                assert not find_reachable([v], second.predecessors.__getitem__).isdisjoint(waits)
    priced = {node.name: (node.time_us, node.group) for half in (first, second) for node in half.nodes}
    assert all(priced[node.name] == (node.time_us, node.group) for node in problem.nodes)


@given(backwards(14))
def test_both_halves_compute_what_the_whole_does(case: tuple[Problem, int, tuple[Problem, Problem]]) -> None:
    problem, _, (first, second) = case
    assume(first is not second)
    check_halves(problem, first, second)


def test_of_llama_a_third_is_kept() -> None:
    """W gathers activations again; without that and copies 14.8 GiB were kept, which is what W would be given."""
    problem = read_problem(INSTANCES / "llama3_8b_bw_64_2d.json.gz")
    (last,) = find_input_gradients(problem, 16 << 20)
    assert problem.nodes[last].name == "add_176"
    first, second = halve_backward(problem, last)
    check_halves(problem, first, second)
    assert 4.8 < given_bytes(second) / 2**30 < 4.9
    assert sum(node.op == "all_gather_into_tensor" for node in second.nodes) == 97
    assert set(second.waits) == set(second.collectives)


def given_bytes(half: Problem) -> int:
    made = [half.storages[s] for node in half.nodes if node.kind is Kind.INPUT for s in node.alloc]
    return sum(storage.bytes for storage in made if not storage.pinned)


def least_kept(problem: Problem, last: int) -> int:
    """Bytes, over all sets of nodes that may run in I, in W, or in both."""
    nodes, before = problem.nodes, rules(problem)
    maker = {s: v for v, node in enumerate(nodes) for s in node.alloc}
    needed = {last, *(v for v, node in enumerate(nodes) if node.kind is Kind.INPUT)}
    for v in reversed(range(last + 1)):
        needed |= before[v] if v in needed else set()
    fixed = {s for node in nodes if writes(node) for s in node.use}
    for node in nodes:
        if node.kind is Kind.COMPUTE and not node.alloc and len({maker[s] for s in node.use}) > 1:
            fixed.update(s for t in node.use for s in nodes[maker[t]].alloc)  # all of them or none

    def gathers(v: int) -> bool:
        return nodes[v].op == "all_gather_into_tensor"

    def free(v: int) -> bool:
        cheap = nodes[v].op.startswith(("aten", "prims")) and not nodes[v].flops
        return bool(nodes[v].alloc) and (cheap or gathers(v)) and fixed.isdisjoint((*nodes[v].alloc, *nodes[v].use))

    early = set(needed)
    for v, node in enumerate(nodes[:-1]):
        if before[v] <= early and (free(v) and not gathers(v) if node.alloc else not writes(node)):
            early.add(v)
    choices = {v: ("I", "IW") if v in needed else ("I", "W", "IW") for v in early if free(v)}
    assume(len(choices) < 8)
    used, least = {s for node in nodes for s in node.use}, 2**62
    for chosen in product(*choices.values()):
        how, ahead = dict(zip(choices, chosen, strict=True)), set(needed)
        for v in sorted(early - needed):
            if how.get(v, "I") != "W" and before[v] <= ahead:
                ahead.add(v)
            elif how.get(v, "W") != "W":
                break
        else:
            behind = [v for v in range(len(nodes)) if v not in ahead or how.get(v) == "IW"]
            kept = {s for v in behind for s in nodes[v].use}.difference(s for v in behind for s in nodes[v].alloc)
            kept |= {s for s, v in maker.items() if nodes[v].kind is Kind.INPUT and s not in used}
            least = min(least, sum(problem.storages[s].bytes for s in kept if not problem.storages[s].pinned))
    return least


@given(backwards(9))
def test_as_little_is_kept_as_can_be(case: tuple[Problem, int, tuple[Problem, Problem]]) -> None:
    problem, last, (first, second) = case
    assume(first is not second)
    node, nodes = problem.nodes[last], problem.nodes
    sent = node.alloc or (node.use if node.collective is None else nodes[node.collective].alloc)
    end = nodes[-1]._replace(use=tuple(s for s in nodes[-1].use if s not in sent))
    least = least_kept(replace(problem, nodes=(*nodes[:-1], end)), last)
    assert given_bytes(second) == least
