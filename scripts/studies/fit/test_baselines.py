"""Checkmate's program beside all runs."""

import random
from collections.abc import Iterator
from itertools import product

import pytest

from overlap_sched.problem import Kind, Node, NodeId, Problem, Storage
from scripts.studies.fit.__main__ import frontier
from scripts.studies.fit.checkmate import UNIT_BYTES, Found, Program
from scripts.studies.fit.ways import point, repeat_nodes

pytest.importorskip("ortools")


def random_graph(draw: random.Random, steps: int) -> Problem:
    """A weight that stays, and steps that take some of what was made before; some read the weight, one writes to it."""
    nodes = [Node("weight", Kind.INPUT, alloc=(0,)), Node("x", Kind.INPUT, alloc=(1,))]
    storages = [Storage(2 * UNIT_BYTES, pinned=True), Storage(draw.randrange(1, 9) * UNIT_BYTES)]
    made, reads, written = [1], list[int](), draw.randrange(1, 3)  # made: nodes, by the storages that they make
    for k in range(steps):
        taken = sorted({k + 1, *(draw.randrange(1, k + 2) for _ in range(draw.randrange(3)))})
        storages.append(Storage(draw.randrange(1, 9) * UNIT_BYTES))
        use = (0, *taken) if draw.random() < 0.7 else tuple(taken)
        deps = (0, *(made[s - 1] for s in taken))
        reads += [len(nodes)] if 0 in use else []
        made.append(len(nodes))
        nodes.append(Node(f"n{k}", Kind.COMPUTE, deps, (k + 2,), use, float(draw.randrange(5, 30)), "op"))
        if k == written:
            nodes.append(Node("update", Kind.COMPUTE, (0, *reads), (), (0,), 1.0, "aten.add_.Tensor"))
    nodes.append(Node("output", Kind.OUTPUT, (len(nodes) - 1, made[-1]), (), (steps + 1,)))
    return Problem("graph", tuple(nodes), tuple(storages))


def every_run(problem: Problem) -> Iterator[list[NodeId]]:
    """Before each step, any of the earlier ones again that read nothing that has been written to since."""
    order = problem.original_order
    steps = [v for v in order if problem.nodes[v].kind is Kind.COMPUTE]
    written = next((v for v in steps if problem.nodes[v].op == "aten.add_.Tensor"), len(order))
    before = []
    for at, v in enumerate([*steps, order[-1]]):
        may = [u for u in steps[:at] if u != written and (v <= written or 0 not in problem.nodes[u].use)]
        choices = product((0, 1), repeat=len(may))
        before.append([[u for u, run in zip(may, runs, strict=True) if run] for runs in choices])
    inputs = [v for v in order if problem.nodes[v].kind is Kind.INPUT]
    for choice in product(*before):
        yield [*inputs, *(u for v, again in zip([*steps, order[-1]], choice, strict=True) for u in (*again, v))]


@pytest.mark.parametrize("seed", range(8))
def test_no_run_at_all_is_faster_than_checkmate(seed: int) -> None:
    problem = random_graph(random.Random(seed), 4)
    program = Program(problem, [(v,) for v, node in enumerate(problem.nodes) if node.kind is Kind.COMPUTE])
    best = list(frontier(point(repeat_nodes(problem, run)) for run in every_run(problem)))
    for one in best:
        found = program.solved(one.peak_bytes, 30.0)
        assert found.proven
        assert found.runs is not None
        assert point(repeat_nodes(problem, program.run_of(found.runs))) == one
    assert program.solved(best[0].peak_bytes - UNIT_BYTES, 30.0) == Found(None, True, 0.0)
