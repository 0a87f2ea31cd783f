"""Results that land badly: by hand on a small problem, and promises on random graphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Node, Options, Problem, Storage
from overlap_sched.judge.validate import violation
from overlap_sched.peak_memory.allocator.caching import CachingAllocator
from overlap_sched.peak_memory.allocator.reserved import requests_of
from overlap_sched.peak_memory.allocator.shortage import Device, shortage_bytes
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Order
from overlap_sched.problem.allocator_settings import MIB, NO_LIMIT, PLAIN
from overlap_sched.scheduler.allocator_gate import AllocatorGate, Care
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.landing import Landing, ends_of, held_back
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.needs import NOTHING, Reserve
from overlap_sched.scheduler.policies import FAR, Policy
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.repair import lacking_less
from overlap_sched.scheduler.settle import Settling, distinct
from tests.peak_memory.test_reserved import with_sizes_of_all_kinds
from tests.support.graphs import problems
from tests.support.oracle import random_order

SHARD = 3
"""MiB that the scatter makes; they last to the end."""


def scattered() -> Problem:
    """Where the scatter runs, only 500 MiB lie free; behind ``mm`` the place of ``b``, beside ``a``, which lasts, does.

    ::

        node       big  a   b   x     scatter            mm        big2
        segments   500  500 500 [500] | 3 | 497 free |   ...       520: does not fit beside 500 that never go back
                        | a |12 free| | a | b |          | a |12 free|
                            | a | b |
    """
    rows = (
        ("big", 500, ""),
        ("a", 8, ""),
        ("b", 11, ""),
        ("x", 1, "big"),
        ("scatter", SHARD, "x"),
        ("mm", 1, "b"),
        ("big2", 520, "mm"),
        ("y", 1, "big2"),
        ("wait", 0, "scatter"),
    )
    names = [name for name, _, _ in rows]
    nodes = []
    for v, (name, _, uses) in enumerate(rows):
        used = tuple(names.index(u) for u in uses.split())
        if name == "scatter":
            nodes.append(Node(name, Kind.COLLECTIVE, used, (v,), used, 5.0, "reduce_scatter", "g"))
        elif name == "wait":
            nodes.append(Node(name, Kind.WAIT, used, (), (names.index("x"), *used), collective=used[0]))
        else:
            nodes.append(Node(name, Kind.COMPUTE, used, (v,), used, 10.0))
    lasting = tuple(names.index(name) for name in ("a", "y", "scatter"))
    nodes.append(Node("output", Kind.OUTPUT, tuple(range(len(rows))), (), lasting))
    sizes = tuple(Storage(size * MIB) for _, size, _ in rows[:-1])
    return Problem("scattered", tuple(nodes), sizes, {"g": Group(8, True)})


def task_of(problem: Problem, headroom: str = "0") -> Task:
    return Task(problem, Options(headroom=headroom), int(LiveRanges(problem).profile(problem.original_order).max()))


def names_of(problem: Problem, order: Order) -> str:
    return " ".join(problem.names(order))


def reserved_bytes(task: Task, order: Order) -> int:
    return requests_of(task.live_ranges, order).replayed(PLAIN).peak_reserved_bytes


def lender(capacity: int = NO_LIMIT) -> CachingAllocator:
    return Device(capacity).allocator(PLAIN, NO_LIMIT)


def test_what_lasts_lands_badly_where_it_keeps_a_large_segment() -> None:
    problem = scattered()
    task = task_of(problem)
    names = [node.name for node in problem.nodes]
    scatter, mm = names.index("scatter"), names.index("mm")
    landing = Landing(task.live_ranges, problem.original_order, CachingAllocator())
    for v in range(scatter):
        landing.run.step(v)
    assert landing.badness(scatter, scatter) == pytest.approx(500 / 20)  # for a segment of 20 MiB of its own
    assert landing.badness(mm, scatter) == 0.0  # small results have segments of their own
    landing.run.step(mm)
    assert landing.badness(scatter, scatter + 1) == 0.0  # the segment is kept by a as long


def test_a_launch_waits_until_it_lands_well() -> None:
    problem = scattered()
    task = task_of(problem)
    order = held_back(task, problem.original_order, lender(), 1.01, 1e9)
    assert names_of(problem, order) == "big a b x mm scatter big2 y wait output"
    enough = 560 * MIB
    assert shortage_bytes(requests_of(task.live_ranges, problem.original_order), [Device(enough)], PLAIN) > 400 * MIB
    assert shortage_bytes(requests_of(task.live_ranges, order), [Device(enough)], PLAIN) == 0
    assert held_back(task, problem.original_order, lender(), 26.0, 1e9) == problem.original_order


def test_a_launch_waits_no_longer_than_it_may() -> None:
    problem = scattered()
    task = task_of(problem)
    at_once = held_back(task, problem.original_order, lender(), 1.01, -1.0)
    assert at_once == problem.original_order


def test_a_careful_run_holds_the_same_launch_back() -> None:
    problem = scattered()
    task = task_of(problem)
    reference = Reference(problem, problem.original_order, task.live_ranges)

    def order_of(care: Care | None) -> str:
        gate = AllocatorGate(task.live_ranges, 2**50, {}, reference.order, care, lender())
        run = list_schedule(reference, task.limit, Policy(1.0, 0.0, FAR), gate=gate)
        assert isinstance(run, Candidate)
        return names_of(problem, run.order)

    careless, careful = order_of(None).split(), order_of(Care(1.01, 100, (Kind.COLLECTIVE,))).split()
    assert careless.index("scatter") < careless.index("mm")
    assert careful.index("mm") < careful.index("scatter")
    impatient = order_of(Care(1.01, -1, (Kind.COLLECTIVE,))).split()
    assert impatient.index("scatter") < impatient.index("big2")


def test_what_lasts_ends_behind_all_others() -> None:
    problem = scattered()
    ends = ends_of(LiveRanges(problem), problem.original_order)
    by_name = {problem.nodes[v].name: ends[s] for v, node in enumerate(problem.nodes) for s in node.alloc}
    assert by_name["a"] == by_name["scatter"] == len(problem.nodes)
    assert by_name["big"] == 3


@given(problems(models=("runtime",)), st.sampled_from((1.01, 3.0)), st.sampled_from((0.0, 5.0, 1e9)))
def test_to_hold_back_keeps_an_order_valid_and_its_peak(problem: Problem, most: float, us: float) -> None:
    problem = with_sizes_of_all_kinds(problem)
    task = task_of(problem)
    order = held_back(task, problem.original_order, lender(), most, us)
    assert violation(problem, order) is None
    assert int(task.live_ranges.profile(order).max()) <= task.base_bytes


@given(problems(models=("runtime",)), st.sampled_from((0.5, 1.01, 3.0)), st.integers(0, 30), st.booleans())
def test_a_careful_run_schedules_every_node(problem: Problem, most: float, nodes: int, compute: bool) -> None:
    problem = with_sizes_of_all_kinds(problem)
    task = task_of(problem)
    reference = Reference(problem, problem.original_order, task.live_ranges)
    care = Care(most, nodes, (Kind.COLLECTIVE, Kind.COMPUTE) if compute else (Kind.COLLECTIVE,))
    gate = AllocatorGate(task.live_ranges, 60 * MIB, {}, reference.order, care, lender(40 * MIB))
    run = list_schedule(reference, task.limit, Policy(1.0, 0.1, FAR), gate=gate)
    assert isinstance(run, Candidate)
    assert violation(problem, run.order) is None
    assert run.peak_bytes <= task.base_bytes


@given(problems(models=("runtime",)))
def test_what_is_settled_lacks_no_more_and_keeps_to_budget_and_step(problem: Problem) -> None:
    problem = with_sizes_of_all_kinds(problem)
    task = task_of(problem, "20%")
    reserve = Reserve.of(task, PLAIN)
    found = task.measured(problem.original_order)
    devices = (Device(reserve.capacity_bytes // 2), *reserve.devices[1:])
    settling = Settling(task, devices, PLAIN, found.step_us)
    pool = settling.settled([found], 2, 2)
    assert settling.looked == len(pool)
    assert [lacking for lacking, _ in pool] == sorted(lacking for lacking, _ in pool)
    before = settling.lacking(found.order)
    assert pool[0][0] <= before
    mended = lacking_less(task, found, reserve.failures, settling.lacking, found.step_us)
    assert settling.lacking(mended.order) <= before
    for candidate in (mended, *(candidate for _, candidate in pool)):
        assert violation(problem, candidate.order) is None
        assert candidate.step_us <= found.step_us
        assert task.within_budget(candidate.order)


def test_settling_finds_the_order_that_is_held_back() -> None:
    problem = scattered()
    task = task_of(problem)
    found = task.measured(problem.original_order)
    devices = (Device(560 * MIB),)
    lacking, best = Settling(task, devices, PLAIN, found.step_us * 1.1).settled([found], 1, 1)[0]
    assert lacking == 0
    order = names_of(problem, best.order).split()
    assert order.index("mm") < order.index("scatter")


def test_of_orders_that_lack_as_much_the_first_is_looked_at() -> None:
    pool = [
        (lacking, Candidate((), step_us, 0)) for lacking, step_us in ((5, 1.0), (5, 2.0), (7, 3.0), (9, 1.0), (9, 4.0))
    ]
    assert [(lacking, found.step_us) for lacking, found in distinct(pool)] == [(5, 1.0), (7, 3.0), (9, 1.0)]
    assert distinct([]) == []


@given(problems(models=("runtime",)), st.integers(0, 2**32))
def test_an_order_breaks_nothing_where_no_device_lacks_anything(problem: Problem, seed: int) -> None:
    problem = with_sizes_of_all_kinds(problem)
    task = task_of(problem)
    reserve = Reserve.of(task, PLAIN)
    assert reserve.overdraft(problem.original_order) == NOTHING
    order = tuple(random_order(problem, seed))
    requests = requests_of(task.live_ranges, order)
    smallest, _, largest = reserve.devices
    broken, lacking = reserve.overdraft(order), shortage_bytes(requests, reserve.devices, PLAIN)
    assert (broken == NOTHING) == (lacking == 0)
    assert requests.fits(smallest.capacity, PLAIN) == (shortage_bytes(requests, [smallest], PLAIN) == 0)
    over_bytes = reserved_bytes(task, order) - largest.capacity
    assert shortage_bytes(requests, [largest], PLAIN) == max(over_bytes, 0)
    assert shortage_bytes(requests, reserve.devices, PLAIN, lacking) == lacking
    assert lacking == 0 or shortage_bytes(requests, reserve.devices, PLAIN, lacking - 1) >= lacking
