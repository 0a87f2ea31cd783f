"""Checkmate's program beside all runs of graphs small enough to try them; and what it says of larger ones."""

import random
from collections.abc import Iterator
from itertools import product
from types import ModuleType

import pytest

from overlap_sched.errors import MissingExtraError
from overlap_sched.problem import Kind, Node, NodeId, Problem, Storage
from scripts.studies.fit import checkmate
from scripts.studies.fit.blocks import blocks_of
from scripts.studies.fit.points import point
from scripts.studies.fit.repeats import repeated
from scripts.studies.fit.rows import frontier
from scripts.studies.fit.steps_of_chains import chain

pytest.importorskip("ortools")

MB = checkmate.UNIT_BYTES
WORK = 30.0


def random_graph(draw: random.Random, steps: int = 4) -> Problem:
    """A weight that stays, and steps that take some of what was made before; some read the weight, one writes to it."""
    nodes = [Node("weight", Kind.INPUT, alloc=(0,)), Node("x", Kind.INPUT, alloc=(1,))]
    storages = [Storage(2 * MB, pinned=True), Storage(draw.randrange(1, 9) * MB)]
    made, reads, written = [1], list[int](), draw.randrange(1, 3)  # nodes, by the storages that they make
    for k in range(steps):
        taken = sorted({k + 1, *(draw.randrange(1, k + 2) for _ in range(draw.randrange(3)))})
        storages.append(Storage(draw.randrange(1, 9) * MB))
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
        before.append(
            [[u for u, run in zip(may, runs, strict=True) if run] for runs in product((0, 1), repeat=len(may))]
        )
    inputs = [v for v in order if problem.nodes[v].kind is Kind.INPUT]
    for choice in product(*before):
        yield [*inputs, *(u for v, again in zip([*steps, order[-1]], choice, strict=True) for u in (*again, v))]


@pytest.mark.parametrize("seed", range(8))
def test_no_run_at_all_is_faster(seed: int) -> None:
    problem = random_graph(random.Random(seed))
    blocks = [(v,) for v, node in enumerate(problem.nodes) if node.kind is Kind.COMPUTE]
    program = checkmate.Program(problem, blocks)
    best = list(frontier(point(repeated(problem, run)) for run in every_run(problem)))
    for one in best:
        found = program.solved(one.peak_bytes, WORK)
        assert found.proven
        assert found.runs is not None
        assert point(repeated(problem, program.run_of(found.runs))) == one
    assert program.solved(best[0].peak_bytes - MB, WORK) == checkmate.Found(None, True, 0.0)


def test_blocks_are_run_whole_and_still_fit() -> None:
    draw = random.Random(3)
    problem = chain([draw.randrange(5, 40) * MB for _ in range(12)], [float(draw.randrange(5, 50)) for _ in range(12)])
    blocks = blocks_of(problem, 10)
    assert len(blocks) == 10
    assert [v for block in blocks for v in block] == list(problem.original_order)[2:-1]
    program, original = checkmate.Program(problem, blocks), point(problem)
    for share in (0.9, 0.7, 0.5):
        found = program.solved(int(share * original.peak_bytes), WORK)
        assert found.runs is not None
        after = point(repeated(problem, program.run_of(found.runs)))
        assert after.peak_bytes <= share * original.peak_bytes
        assert original.step_us < after.step_us


def test_of_a_block_only_what_somebody_takes_runs_again() -> None:
    problem = chain([MB, MB, MB])  # weight 0, tangents 1, f0 2, f1 3, f2 4, b2 5 takes f1, b1 6 takes f0, b0 7
    program = checkmate.Program(problem, [(2, 3, 4), (5,), (6,), (7,)])
    assert program.run_of(((), (), (0,), (), ())) == [0, 1, 2, 3, 4, 5, 2, 6, 7, 8]


def test_what_reads_a_weight_does_not_run_again_once_that_has_changed() -> None:
    nodes = (
        Node("weight", Kind.INPUT, alloc=(0,)),
        Node("large", Kind.COMPUTE, (0,), (1,), (0,), 1.0, "op"),
        Node("small", Kind.COMPUTE, (1,), (2,), (1,), 1.0, "op"),
        Node("update", Kind.COMPUTE, (0, 1), (), (0,), 1.0, "aten.add_.Tensor"),
        Node("wide", Kind.COMPUTE, (2,), (3,), (2,), 1.0, "op"),
        Node("reads", Kind.COMPUTE, (1, 3), (4,), (1,), 1.0, "op"),
        Node("output", Kind.OUTPUT, (2, 5), (), (2, 4)),
    )
    storages = tuple(Storage(size * MB, size == 2) for size in (2, 50, 1, 60, 1))
    blocks = [(v,) for v in range(1, 6)]
    program = checkmate.Program(Problem("updated", nodes, storages), blocks)
    assert program.solved(70 * MB, WORK) == checkmate.Found(None, True, 0.0)
    reading = nodes[3]._replace(op="op", alloc=(5,), use=())  # no update
    still = checkmate.Program(Problem("same", (*nodes[:3], reading, *nodes[4:]), (*storages, Storage(MB))), blocks)
    assert still.solved(70 * MB, WORK) == checkmate.Found(((), (), (), (), (0,), ()), True, 1.0)


def test_neighbours_that_give_each_other_most_are_merged() -> None:
    problem = chain([10 * MB, 90 * MB, 20 * MB, 30 * MB], [1.0, 1.0, 1.0, 1.0])
    names = [[problem.nodes[v].name for v in block] for block in blocks_of(problem, 7)]
    assert names == [["f0"], ["f1", "f2"], ["f3"], ["b3"], ["b2"], ["b1"], ["b0"]]
    assert len(blocks_of(problem, 100)) == 8
    assert len(blocks_of(problem, 1)) == 1


def test_what_is_only_there_to_make_the_next_one_is_made_again_for_it() -> None:
    sizes = [5 * MB, 60 * MB, 50 * MB, 50 * MB, 50 * MB]
    problem = chain(sizes, [10.0, 10.0, 10.0, 100.0, 10.0], saved=[0, 2, 3])  # f3 is too dear, and f1 too large to keep
    program = checkmate.Program(problem, blocks_of(problem, 100))
    found = program.solved(130 * MB, WORK)
    assert found.runs is not None
    names = [problem.nodes[v].name for v in program.run_of(found.runs)]
    assert [name for at, name in enumerate(names) if name in names[:at]] == ["f1", "f2"]


def test_the_bound_of_what_is_not_solved_is_below_what_is_found() -> None:
    problem = chain([20 * MB] * 9, [float(10 + 7 * k % 5) for k in range(9)])
    program = checkmate.Program(problem, blocks_of(problem, 100))
    ended, stopped = (program.solved(130 * MB, work) for work in (WORK, 1e-6))
    assert ended.proven
    assert not stopped.proven
    assert 0.0 <= stopped.again_us <= ended.again_us


def test_without_a_solver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(checkmate.importlib, "import_module", missing)
    problem = chain([MB, MB])
    with pytest.raises(MissingExtraError) as error:
        checkmate.Program(problem, blocks_of(problem, 9)).solved(9 * MB, WORK)
    assert str(error.value) == (
        "recomputation by a solver needs OR-tools, which is not installed: pip install 'overlap_sched[exact]'."
    )
