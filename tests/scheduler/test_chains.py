"""Graphs of several chains: recognised, interleaved, and scheduled well from whatever order they are listed in."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_repro.generate.chains import Chains, halves, side_by_side
from overlap_sched import EXAMPLE, Kind, Options, Problem, schedule
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import launch_violation, violation
from overlap_sched.problem.file import read_problem
from overlap_sched.scheduler.chains import chains, has_chains, interleaved
from overlap_sched.scheduler.restrictions import Proposal, followed
from overlap_sched.scheduler.task import Reference, Task
from tests.support.examples import at_night, examples
from tests.support.graphs import problems
from tests.support.layers import LISTINGS, forward, layers, unlike
from tests.support.oracle import INSTANCES, peak_by_definition

listings = pytest.mark.parametrize("listed", LISTINGS.values(), ids=list(LISTINGS))
least_alike = pytest.mark.parametrize(
    "listed", [at_night(LISTINGS["one by one"], id="one by one"), pytest.param(LISTINGS["shuffled"], id="shuffled")]
)
"""Where one graph takes seconds."""


def task_of(problem: Problem, options: Options | None = None) -> tuple[Task, Reference]:
    """The task, and the original order as its reference."""
    peak = max(peak_by_definition(problem, list(problem.original_order)))
    task = Task(problem, options or Options(memory_model=problem.memory_model), peak)
    return task, Reference(problem, problem.original_order, task.live_ranges)


def gap(problem: Problem) -> float:
    """Of our order, above the bound within its budget."""
    result = schedule(problem, Options(strict=True))
    return result.scheduled.step_us / result.budget_bound_us - 1


@pytest.mark.parametrize("one", [forward(20), layers(20), EXAMPLE], ids=lambda problem: problem.name)
def test_one_pass_is_one_chain(one: Problem) -> None:
    assert not has_chains(one)


@pytest.mark.slow
def test_no_committed_instance_has_two() -> None:
    for path in sorted(INSTANCES.glob("*.json.gz")):
        for scale in (1.0, 4.0):
            assert not has_chains(read_problem(path).with_comm_scale(scale)), path.name


@listings
def test_two_passes_are_two_chains(listed: Callable[[Chains], Problem]) -> None:
    for made in (halves(forward(20)), side_by_side(forward(20), layers(20)), side_by_side(layers(20), layers(20))):
        assert has_chains(listed(made))


def test_where_nodes_are_on_their_chain() -> None:
    problem = side_by_side(forward(10), forward(5)).problem
    made = chains(Reference(problem, problem.original_order), problem.predecessors)
    node = {node.name: v for v, node in enumerate(problem.nodes)}
    assert [made.on_demand[node[name]] for name in ("w3.0", "gather3.0", "full3.0", "mm3.0", "norm3.0")] == [
        *(True, True, True),
        *(False, False),
    ]
    assert [name for name, v in node.items() if made.begins[v]] == ["mm0.0", "mm0.1"]
    assert made.stage_us == 2 * (5.0 + 50.0)  # norm, then mm
    # half-way is half-way on both, however long they are
    assert made.ahead[node["mm5.0"]] == pytest.approx(0.5, abs=0.03)
    assert made.ahead[node["mm2.1"]] == pytest.approx(0.6, abs=0.03)
    assert made.ahead[node["mm0.0"]] == pytest.approx(made.ahead[node["mm0.1"]], abs=0.03)


@listings
def test_chains_take_turns_stage_by_stage(listed: Callable[[Chains], Problem]) -> None:
    problem = listed(side_by_side(forward(6), forward(6)))
    task, reference = task_of(problem, Options(headroom=10**6))
    order = interleaved(task, reference)
    turns = [problem.nodes[v].name for v in order if problem.nodes[v].kind is Kind.COMPUTE]
    first, second = turns[0][-1], turns[1][-1]
    assert turns == [
        name
        for k in range(6)
        for part in (first, second)
        for name in ([f"norm{k - 1}.{part}"] if k else []) + [f"mm{k}.{part}"]
    ] + [f"norm5.{first}", f"norm5.{second}"]
    assert (
        replay(problem, order).step_us < replay(problem, problem.original_order).step_us
        or listed is Chains.stage_by_stage
    )


def test_a_chain_that_never_waits_lets_the_other_on() -> None:
    problem = side_by_side(layers(20), forward(20)).one_by_one()
    task, reference = task_of(problem, Options(headroom=10**6))
    order = interleaved(task, reference)
    place = {problem.nodes[v].name: at for at, v in enumerate(order)}
    assert place["mm5.1"] < place["dgrad10.0"] < place["mm15.1"]
    assert place["wgrad5.0"] < place["dgrad10.0"]  # what frees memory does not wait for the end


def test_another_ranks_launches_may_turn_the_order_of_ids_round() -> None:
    problem = side_by_side(forward(20), layers(20)).one_by_one()
    other = unlike(problem, Random(2), 4, (0, 0.5, -0.5), pad_us=1.0)
    proposal = Proposal.of(other, schedule(other).order)
    task = Task(problem, Options(), 10**6, like=followed(problem, proposal))
    order = interleaved(task, task.reference(task.nearest))
    assert violation(problem, order) is None
    assert task.keeps(order)


@examples(100)
@given(st.data())
def test_any_graph_within_any_budget(data: st.DataObject) -> None:
    problem = data.draw(problems(max_steps=20))
    options = Options(
        memory_model=problem.memory_model,
        headroom=data.draw(st.sampled_from([0, 1, 4, "50%"])),
        budget=data.draw(st.sampled_from(["peak", "profile"])),
        preserve_collective_order=data.draw(st.sampled_from(["none", "group", "all"])),
    )
    task, reference = task_of(problem, options)
    order = interleaved(task, reference)
    assert violation(problem, order) is None
    assert launch_violation(problem, order, options.preserve_collective_order) is None
    assert task.within_budget(order)


@pytest.mark.slow
@listings
def test_two_chains_end_near_the_bound(listed: Callable[[Chains], Problem]) -> None:
    made = [halves(forward(60, 50.0, tp_us), gathers_shared=False) for tp_us in (10.0, 30.0)]
    if listed is not LISTINGS["merged"]:  # there a forward beside a backward ends at 2.5 %
        made.append(side_by_side(forward(60), layers(60)))
    assert max(map(gap, map(listed, made))) < 0.015


@pytest.mark.slow
@least_alike
@pytest.mark.parametrize(
    ("which", "most"),
    [("halves", 0.025), ("halves that gather", 0.03), ("forward and backward", 0.025), ("two backward", 0.05)],
)
def test_real_graphs_end_near_the_bound(listed: Callable[[Chains], Problem], which: str, most: float) -> None:
    ahead, back = (read_problem(INSTANCES / f"llama3_8b_{name}_64_2d.json.gz") for name in ("fw", "bw"))
    made = {
        "halves": lambda: halves(ahead),
        "halves that gather": lambda: halves(ahead, gathers_shared=False),
        "forward and backward": lambda: side_by_side(ahead, back),
        "two backward": lambda: side_by_side(back, back),
    }[which]()
    assert gap(listed(made)) < most
