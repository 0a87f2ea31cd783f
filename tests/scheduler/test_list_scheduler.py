"""One run: within the budget whatever the policy, and what each of its rules is for."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Problem, Storage
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import violation
from overlap_sched.scheduler.list_scheduler import Policy, list_schedule
from overlap_sched.scheduler.task import Reference
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.layers import layers
from tests.support.oracle import peak_by_definition, random_order

POLICIES = st.builds(
    Policy,
    lead=st.sampled_from([-1.0, -0.02, 0.0, 0.1, 1.0]),
    slack=st.sampled_from([-1.0, -0.03, 0.0, 0.12, 1.0]),
    window=st.sampled_from([1, 2, 5, math.inf]),
    prepares=st.booleans(),
    keeps_busy=st.booleans(),
)


@examples(80)
@given(problems(), POLICIES, st.integers(0, 99), st.integers(0, 9), st.booleans())
def test_valid_and_within_the_budget_under_any_policy(
    problem: Problem, policy: Policy, seed: int, room: int, flat: bool
) -> None:
    reference = random_order(problem, seed)
    profile = np.array(peak_by_definition(problem, reference))
    limit = np.array(profile.max() + room) if flat else profile + room
    run = list_schedule(Reference(problem, reference), limit, policy).made
    assert run is not None
    assert violation(problem, run.order) is None
    made = np.array(peak_by_definition(problem, list(run.order)))
    assert (made <= limit).all()
    assert run.peak_bytes == made.max()
    assert math.isclose(run.step_us, replay(problem, run.order).step_us, rel_tol=1e-9)


def test_what_memory_refuses_on_one_stream_does_not_stop_another() -> None:
    """Five large gathers have no room beside `mm`; the small one of another group has, and is launched before it."""
    nodes = [Node("mm", Kind.COMPUTE, alloc=(0,), time_us=100.0)]
    storages = [Storage(100)]
    for name, group, size in [*((f"large{k}", "fsdp", 100) for k in range(5)), ("small", "tp", 1)]:
        v, s = len(nodes), len(storages)
        storages.append(Storage(size))
        nodes.append(Node(name, Kind.COLLECTIVE, (), (s,), (), 10.0, "all_gather_into_tensor", group))
        nodes.append(Node(f"{name}.wait", Kind.WAIT, (v,), (), (s,), collective=v))
        nodes.append(Node(f"{name}.use", Kind.COMPUTE, (v + 1,), (), (s,), 5.0))
    problem = Problem("two streams", tuple(nodes), tuple(storages), {"fsdp": Group(8, False), "tp": Group(8, True)})
    run = list_schedule(Reference(problem, problem.original_order), np.array(101), Policy(lead=1.0, slack=-1.0)).made
    assert run is not None
    assert problem.names(run.order)[:2] == ["small", "mm"]


def test_compute_is_looked_for_no_further_than_the_window() -> None:
    nodes = (
        Node("gather", Kind.COLLECTIVE, (), (0,), (), 50.0, "all_gather_into_tensor", "fsdp"),
        Node("full", Kind.WAIT, (0,), (), (0,), collective=0),
        Node("use", Kind.COMPUTE, (1,), (), (0,), 10.0),
        Node("far", Kind.COMPUTE, (), (), (), 40.0),
    )
    problem = Problem("window", nodes, (Storage(1),), {"fsdp": Group(8, True)})
    reference = Reference(problem, problem.original_order)
    for window, names in [(3, ["gather", "far", "full", "use"]), (2, ["gather", "full", "use", "far"])]:
        run = list_schedule(reference, np.array(1), Policy(lead=0.0, slack=-1.0, window=window)).made
        assert run is not None
        assert problem.names(run.order) == names


def test_what_prepares_a_launch_runs_ahead_of_its_place_or_does_not() -> None:
    nodes = (
        Node("mm", Kind.COMPUTE, (), (), (), 100_000.0),
        Node("cast", Kind.COMPUTE, (), (0,), (), 1.0),
        Node("gather", Kind.COLLECTIVE, (1,), (1,), (0,), 50.0, "all_gather_into_tensor", "fsdp"),
        Node("full", Kind.WAIT, (2,), (), (0, 1), collective=2),
        Node("use", Kind.COMPUTE, (3,), (), (1,), 10.0),
    )
    problem = Problem("prepared", nodes, (Storage(1), Storage(1)), {"fsdp": Group(8, True)})
    reference = Reference(problem, problem.original_order)
    for prepares, first, step_us in [(True, "cast", 100_011.0), (False, "mm", 100_061.0)]:
        run = list_schedule(reference, np.array(2), Policy(lead=0.0, slack=-1.0, prepares=prepares)).made
        assert run is not None
        assert problem.names(run.order)[0] == first
        assert run.step_us == step_us


def test_standing_still_launches_only_what_is_due_meanwhile() -> None:
    """While `first` is awaited nothing can run; `later`, wanted after 200 us of compute, must not get before `next`."""
    nodes = [
        Node("first", Kind.COLLECTIVE, (), (0,), (), 20.0, "all_gather_into_tensor", "fsdp"),
        Node("first.wait", Kind.WAIT, (0,), (), (0,), collective=0),
    ]
    for k in range(50):  # so many that nobody looks ahead through them
        nodes.append(Node(f"step{k}", Kind.COMPUTE, (k + 1,), (), (0,), 1.0))
    chain = len(nodes)
    nodes += [
        Node("next", Kind.COLLECTIVE, (chain - 1,), (1,), (0,), 20.0, "all_gather_into_tensor", "fsdp"),
        Node("next.wait", Kind.WAIT, (chain,), (), (0, 1), collective=chain),
        Node("mm", Kind.COMPUTE, (chain + 1,), (), (1,), 200.0),
        Node("later", Kind.COLLECTIVE, (), (2,), (), 100.0, "all_gather_into_tensor", "fsdp"),
        Node("later.wait", Kind.WAIT, (chain + 3,), (), (2,), collective=chain + 3),
        Node("end", Kind.COMPUTE, (chain + 2, chain + 4), (), (2,), 10.0),
    ]
    problem = Problem("standstill", tuple(nodes), tuple(map(Storage, (1, 1, 1))), {"fsdp": Group(8, True)})
    run = list_schedule(Reference(problem, problem.original_order), np.array(99), Policy(lead=0.0, slack=-1.0)).made
    assert run is not None
    assert run.step_us == 20 + 50 + 20 + 200 + 10


def test_what_frees_memory_is_launched_in_its_place_though_nobody_needs_it_soon() -> None:
    """Reduce_scatters on a stream of their own: nobody needs their results before the end of the step.

    Launched that late, their inputs fill the memory that the next gathers need: 1,500 us instead of 1,140.
    """
    shared = layers(12)
    nodes = tuple(node._replace(group="dp") if node.name.startswith("scatter") else node for node in shared.nodes)
    problem = replace(shared, nodes=nodes, groups={**shared.groups, "dp": Group(2, False)})
    reference = Reference(problem, problem.original_order)
    assert sum(reference.frees) == 12
    run = list_schedule(reference, reference.profile.max(), Policy(lead=0.005, slack=-1.0)).made
    assert run is not None
    assert run.step_us == 1140.0
    names = problem.names(run.order)
    assert all(names.index(f"scatter{k}") < names.index(f"gather{k + 2}") for k in range(10))
