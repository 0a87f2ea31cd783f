"""What is not a problem gets an error of its own that says what, where and how to mend it."""

import pytest
from hypothesis import given

from overlap_sched import errors
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.validate import violation
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem, Storage
from overlap_sched.problem.contention import Contention
from overlap_sched.scheduler.driver import schedule
from tests.support.graphs import problems
from tests.support.oracle import rules

FSDP = {"fsdp": Group(8, True)}
A = Node("a", Kind.COMPUTE)
INPUT = Node("in", Kind.INPUT, alloc=(0,))


@given(problems())
def test_predecessors_and_successors(problem: Problem) -> None:
    assert [set(before) for before in problem.predecessors] == rules(problem)
    assert all(list(before) == sorted(before) for before in problem.predecessors)
    for v, before in enumerate(problem.predecessors):
        assert all(v in problem.successors[u] for u in before)
    assert sum(map(len, problem.predecessors)) == sum(map(len, problem.successors))


def test_time_on_the_compute_stream() -> None:
    """That of a collective is on its group's stream."""
    assert EXAMPLE.compute_us == (0, 0, 0, 0, 50, 30, 30, 0, 0, 0)


COMPUTE, WAIT = Kind.COMPUTE, Kind.WAIT
BROKEN = [
    ((), (), "has no nodes: there is nothing to schedule"),
    ((A, A), (), "nodes 0 and 1 are both named 'a'"),
    ((A, Node("b", COMPUTE, deps=(7,))), (), r"1 \('b'\) depends on node 7, but ids go from 0 to 1"),
    ((A, Node("b", COMPUTE, deps=(-1,))), (), r"1 \('b'\) depends on node -1"),
    ((Node("c", Kind.COLLECTIVE, group="tp"),), (), r"0 \('c'\) runs on group 'tp', .* \['fsdp'\]. Add it to `groups`"),
    ((A, Node("in", Kind.INPUT, deps=(0,))), (), r"input 1 \('in'\) has dependencies \[0\]"),
    ((A, Node("b", COMPUTE, collective=0)), (), r"compute 1 \('b'\) names a collective to wait for"),
    ((A, Node("w", WAIT, collective=0)), (), r"wait 1 \('w'\) waits for node 0, which is not a collective"),
    ((A, Node("w", WAIT, collective=5)), (), r"wait 1 \('w'\) waits for node 5, which is not a collective"),
    ((Node("b", COMPUTE, deps=(1,)), A), (), r"node 0 \('b'\) is listed before node 1 \('a'\)"),
    (
        (Node("a", COMPUTE, deps=(2,)), Node("b", COMPUTE, deps=(0,)), Node("c", COMPUTE, deps=(1,))),
        (),
        "in a ring of 3: a -> b -> c -> a. No order can run it",
    ),
    ((Node("a", COMPUTE, deps=(0,)),), (), "in a ring of 1: a -> a"),
    ((INPUT, Node("b", COMPUTE, alloc=(0,))), (Storage(1),), "storage 0 is allocated twice, by 'in' and by 'b'"),
    ((Node("b", COMPUTE, alloc=(0, 0)),), (Storage(1),), "storage 0 is allocated twice, by 'b' and by 'b'"),
    ((Node("b", COMPUTE, use=(0,)),), (Storage(1),), r"node 0 \('b'\) uses storage 0, which no node allocates"),
    (
        (Node("b", COMPUTE, use=(0,)), Node("c", COMPUTE, alloc=(0,))),
        (Storage(1),),
        r"node 0 \('b'\) uses storage 0 before 'c' \(node 1\) allocates it",
    ),
    ((Node("b", COMPUTE, use=(0,)), INPUT), (Storage(4),), r"uses storage 0 before 'in' \(node 1\) allocates it"),
    (
        (INPUT, Node("in1", Kind.INPUT, alloc=(1,)), Node("b", COMPUTE, use=(0, 1, 1, 0))),
        (Storage(1), Storage(1)),
        r"node 2 \('b'\) lists storage 1 twice",
    ),
    ((Node("b", COMPUTE, use=(3,)),), (Storage(1),), r"node 0 \('b'\) names storage 3, but storages go from 0 to 0"),
    ((INPUT,), (Storage(-5),), "storage 0 has -5 bytes"),
    ((INPUT,), (Storage(2**61),), r"2305843009213693952 bytes, more than 1152921504606846976 \(2\*\*60\)"),
    ((Node("b", COMPUTE, time_us=float("nan")),), (), r"0 \('b'\) takes nan us: times are finite"),
    ((Node("b", COMPUTE, time_us=-1.0),), (), r"0 \('b'\) takes -1.0 us: times are finite and 0 or more"),
    ((Node("b", COMPUTE, time_us=1.7e308), Node("c", COMPUTE, time_us=1.7e308)), (), "add up to infinity"),
    ((Node("b", COMPUTE, time_us=10**400),), (), r"0 \('b'\) takes 2\*\*1328 or more us"),
    ((Node("b", COMPUTE, flops=2**63),), (), r"0 \('b'\) has 9223372036854775808 flops"),
    ((Node("b", COMPUTE, bytes=-1),), (), r"0 \('b'\) has -1 bytes: counts are 0 or more"),
    ((INPUT._replace(time_us=5.0),), (Storage(1),), r"input 0 \('in'\) takes 5.0 us: only compute"),
    ((A, Node("w", WAIT, time_us=5.0)), (), r"wait 1 \('w'\) takes 5.0 us: only compute"),
    ((A, Node("out", Kind.OUTPUT, time_us=1e-9)), (), r"output 1 \('out'\) takes 1e-09 us"),
    ((Node("c", Kind.COLLECTIVE, group="fsdp", launches=("fsdp",)),), (), r"collective 0 \('c'\) has `launches`"),
]


@pytest.mark.parametrize(("nodes", "storages", "said"), BROKEN)
def test_errors_name_what_is_wrong(nodes: tuple[Node, ...], storages: tuple[Storage, ...], said: str) -> None:
    with pytest.raises(errors.ProblemError, match=said):
        Problem("broken", nodes, storages, FSDP)


def test_unknown_memory_model() -> None:
    with pytest.raises(errors.ProblemError, match="memory_model is 'guess'; it is 'runtime' or 'tracker'"):
        Problem("p", (A,), (), memory_model="guess")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -8, 2**31])
def test_a_group_without_ranks(size: int) -> None:
    with pytest.raises(errors.ProblemError, match=f"group 'tp' has size {size}; it is a number of ranks"):
        Problem("p", (A,), (), {"tp": Group(size, True)})


def test_contention_that_makes_the_step_endless() -> None:
    with pytest.raises(errors.ProblemError, match="slowed down by contention, add up to infinity"):
        Problem("p", (A._replace(time_us=1e9),), (), contention=Contention({"": 1e300}))
    with pytest.raises(errors.ProblemError, match=r"takes 2\*\*1328 or more times its time"):
        Contention({"": 10**400})


def test_a_long_ring_is_shortened() -> None:
    ring = tuple(Node(f"n{v}", Kind.COMPUTE, deps=((v - 1) % 1000,)) for v in range(1000))
    with pytest.raises(errors.ProblemError, match=r"in a ring of 1000: n0 -> n1 -> .* -> n7 -> \.\.\.\. No order"):
        Problem("ring", ring, ())


def test_an_original_order_that_uses_the_output_of_a_later_wait_is_named() -> None:
    launch = Node("launch", Kind.COLLECTIVE, alloc=(0,), group="fsdp")
    wait = Node("wait", Kind.WAIT, use=(0,), collective=1)
    with pytest.raises(errors.ProblemError, match=r"node 0 \('wait'\) is listed before node 1 \('launch'\)"):
        Problem("early wait", (wait, launch), (Storage(1),), FSDP)


def chain(length: int) -> Problem:
    """One collective, then a chain of computes, then its wait."""
    gather = Node("gather", Kind.COLLECTIVE, alloc=(0,), time_us=10.0, group="fsdp")
    body = [Node(f"n{v}", Kind.COMPUTE, deps=(v - 1,) if v > 1 else (), time_us=1.0) for v in range(1, length)]
    wait = Node("wait", Kind.WAIT, use=(0,), collective=0)
    return Problem("chain", (gather, *body, wait), (Storage(8),), FSDP)


@pytest.mark.slow
def test_a_deep_chain_needs_no_recursion() -> None:
    problem = chain(5000)
    assert lower_bound_us(problem) == 4999.0
    assert violation(problem, schedule(problem).order) is None


@pytest.mark.slow
def test_a_long_chain() -> None:
    """What goes by squares, or deeper with each node, does not end here."""
    problem = chain(250_000)
    assert lower_bound_us(problem) == 249999.0
    assert violation(problem, schedule(problem, Options(effort=1)).order) is None


@pytest.mark.nightly
@pytest.mark.slow
def test_a_long_ring() -> None:
    n = 250_000
    with pytest.raises(errors.ProblemError, match="in a ring of 250000"):
        Problem("ring", tuple(Node(f"n{v}", Kind.COMPUTE, deps=((v - 1) % n,)) for v in range(n)), ())


def test_the_example_is_frozen() -> None:
    with pytest.raises(AttributeError):
        EXAMPLE.name = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        EXAMPLE.nodes[0].name = "other"  # type: ignore[misc]
