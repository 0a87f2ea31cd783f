"""What is not a problem gets an error of its own that says what, where and how to mend it."""

import pytest
from hypothesis import given

from overlap_sched import errors
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.validate import violation
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem, Storage
from overlap_sched.problem.contention import Contention
from overlap_sched.scheduler.pipeline import schedule
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


BROKEN = [
    (
        (),
        (),
        errors.ProblemError,
        "problem 'broken' has no nodes: there is nothing to schedule. Was the graph empty when it was captured?",
    ),
    (
        (A, A),
        (),
        errors.ProblemError,
        "nodes 0 and 1 are both named 'a'. Orders are lists of names: give each node its own.",
    ),
    (
        (A, Node("b", Kind.COMPUTE, deps=(7,))),
        (),
        errors.ProblemError,
        "node 1 ('b') depends on node 7, but ids go from 0 to 1. Was the list of nodes cut short?",
    ),
    (
        (A, Node("b", Kind.COMPUTE, deps=(-1,))),
        (),
        errors.ProblemError,
        "node 1 ('b') depends on node -1, but ids go from 0 to 1. Was the list of nodes cut short?",
    ),
    (
        (Node("c", Kind.COLLECTIVE, group="tp"),),
        (),
        errors.ProblemError,
        "collective 0 ('c') runs on group 'tp', which is not among the groups ['fsdp']. "
        "Add it to `groups` with its size.",
    ),
    (
        (A, Node("in", Kind.INPUT, deps=(0,))),
        (),
        errors.ProblemError,
        "input 1 ('in') has dependencies [0], but inputs are there from the start. Make it a compute node or drop "
        "them.",
    ),
    (
        (A, Node("b", Kind.COMPUTE, collective=0)),
        (),
        errors.ProblemError,
        "node 1 ('b') is of kind 'compute' but names a collective to wait for. Only waits do: make it a wait or drop "
        "`collective`.",
    ),
    (
        (A, Node("w", Kind.WAIT, collective=0)),
        (),
        errors.ProblemError,
        "wait 1 ('w') waits for node 0, which is not a collective of this problem. Leave `collective` out where it was "
        "launched before this graph.",
    ),
    (
        (Node("b", Kind.COMPUTE, deps=(1,)), A),
        (),
        errors.ProblemError,
        "node 0 ('b') is listed before node 1 ('a'), on which it depends. List the nodes in an order that can run.",
    ),
    (
        (Node("a", Kind.COMPUTE, deps=(2,)), Node("b", Kind.COMPUTE, deps=(0,)), Node("c", Kind.COMPUTE, deps=(1,))),
        (),
        errors.ProblemError,
        "nodes wait for each other in a ring of 3: a -> b -> c -> a. No order can run it: remove one of these "
        "dependencies.",
    ),
    (
        (Node("a", Kind.COMPUTE, deps=(0,)),),
        (),
        errors.ProblemError,
        "nodes wait for each other in a ring of 1: a -> a. No order can run it: remove one of these dependencies.",
    ),
    (
        (INPUT, Node("b", Kind.COMPUTE, alloc=(0,))),
        (Storage(1),),
        errors.ProblemError,
        "storage 0 is allocated twice, by 'in' and by 'b'. A storage has one allocation: let the second only use it, "
        "or give it a storage of its own.",
    ),
    (
        (Node("b", Kind.COMPUTE, alloc=(0, 0)),),
        (Storage(1),),
        errors.ProblemError,
        "storage 0 is allocated twice, by 'b' and by 'b'. A storage has one allocation: let the second only use it, or "
        "give it a storage of its own.",
    ),
    (
        (Node("b", Kind.COMPUTE, use=(0,)),),
        (Storage(1),),
        errors.ProblemError,
        "node 0 ('b') uses storage 0, which no node allocates. Add it to the `alloc` of the node that makes it (an "
        "input, if it comes from outside).",
    ),
    (
        (Node("b", Kind.COMPUTE, use=(0,)), Node("c", Kind.COMPUTE, alloc=(0,))),
        (Storage(1),),
        errors.ProblemError,
        "node 0 ('b') uses storage 0 before 'c' (node 1) allocates it. List the allocating node first.",
    ),
    (
        (Node("b", Kind.COMPUTE, use=(0,)), INPUT),
        (Storage(4),),
        errors.ProblemError,
        "node 0 ('b') uses storage 0 before 'in' (node 1) allocates it. List the allocating node first.",
    ),
    (
        (INPUT, Node("in1", Kind.INPUT, alloc=(1,)), Node("b", Kind.COMPUTE, use=(0, 1, 1, 0))),
        (Storage(1), Storage(1)),
        errors.ProblemError,
        "node 2 ('b') lists storage 1 twice in `use` and would count as two users of it. List it once.",
    ),
    (
        (Node("b", Kind.COMPUTE, use=(3,)),),
        (Storage(1),),
        errors.ProblemError,
        "node 0 ('b') names storage 3, but storages go from 0 to 0. Was the list of storages cut short?",
    ),
    ((INPUT,), (Storage(-5),), errors.ProblemError, "storage 0 has -5 bytes: sizes are 0 or more."),
    (
        (INPUT,),
        (Storage(2**61),),
        errors.ProblemError,
        "all storages together have 2305843009213693952 bytes, more than 1152921504606846976 (2**60). "
        "Are the sizes in bytes?",
    ),
    (
        (Node("b", Kind.COMPUTE, time_us=float("nan")),),
        (),
        errors.ProblemError,
        "node 0 ('b') takes nan us: times are finite and 0 or more. Check its cost.",
    ),
    (
        (Node("b", Kind.COMPUTE, time_us=-1.0),),
        (),
        errors.ProblemError,
        "node 0 ('b') takes -1.0 us: times are finite and 0 or more. Check its cost.",
    ),
    (
        (Node("b", Kind.COMPUTE, time_us=1.7e308), Node("c", Kind.COMPUTE, time_us=1.7e308)),
        (),
        errors.ProblemError,
        "the times of all nodes add up to infinity. Are they in microseconds?",
    ),
    (
        (Node("b", Kind.COMPUTE, time_us=10**400),),
        (),
        errors.ProblemError,
        "node 0 ('b') takes 2**1328 or more us: times are finite and 0 or more. Check its cost.",
    ),
    (
        (Node("b", Kind.COMPUTE, flops=2**63),),
        (),
        errors.ProblemError,
        "node 0 ('b') has 9223372036854775808 flops: counts are 0 or more, and below 2**63. Check its cost.",
    ),
    (
        (Node("b", Kind.COMPUTE, bytes=-1),),
        (),
        errors.ProblemError,
        "node 0 ('b') has -1 bytes: counts are 0 or more, and below 2**63. Check its cost.",
    ),
    (
        (INPUT._replace(time_us=5.0),),
        (Storage(1),),
        errors.ProblemError,
        "input 0 ('in') takes 5.0 us, but an input takes no time: only compute nodes and collectives do. "
        "Make it a compute node, or drop its time.",
    ),
    (
        (A, Node("w", Kind.WAIT, time_us=5.0)),
        (),
        errors.ProblemError,
        "wait 1 ('w') takes 5.0 us, but a wait takes no time: only compute nodes and collectives do. "
        "Make it a compute node, or drop its time.",
    ),
    (
        (A, Node("out", Kind.OUTPUT, time_us=1e-9)),
        (),
        errors.ProblemError,
        "output 1 ('out') takes 1e-09 us, but an output takes no time: only compute nodes and collectives do. "
        "Make it a compute node, or drop its time.",
    ),
]


@pytest.mark.parametrize(("nodes", "storages", "kind", "said"), BROKEN)
def test_errors_word_by_word(
    nodes: tuple[Node, ...], storages: tuple[Storage, ...], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as caught:
        Problem("broken", nodes, storages, FSDP)
    assert type(caught.value) is kind
    assert str(caught.value) == said


def test_unknown_memory_model() -> None:
    with pytest.raises(errors.ProblemError) as caught:
        Problem("p", (A,), (), memory_model="guess")  # type: ignore[arg-type]
    assert str(caught.value) == "problem 'p': memory_model is 'guess'; it is 'runtime' or 'tracker'."


@pytest.mark.parametrize("size", [0, -8, 2**31])
def test_a_group_without_ranks(size: int) -> None:
    with pytest.raises(errors.ProblemError) as caught:
        Problem("p", (A,), (), {"tp": Group(size, True)})
    assert str(caught.value) == (f"group 'tp' has size {size}; it is a number of ranks, 1 to 2147483647. Correct it.")


def test_contention_that_makes_the_step_endless() -> None:
    with pytest.raises(errors.ProblemError) as caught:
        Problem("p", (A._replace(time_us=1e9),), (), contention=Contention({"": 1e300}))
    assert str(caught.value) == (
        "the times of all nodes, slowed down by contention, add up to infinity. Is a factor of `slowdown` too large?"
    )
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
