"""A graph as two: each node is in one of them, and as much is live at it as in the whole."""

from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile, violation
from overlap_sched.problem import EXAMPLE, Kind, Problem
from overlap_sched.problem.parts import needed_first, parted
from tests.support.graphs import problems


def outputs(problem: Problem) -> int:
    return sum(node.kind is Kind.OUTPUT for node in problem.nodes)


@given(problems(), st.data())
def test_as_much_is_live_as_in_the_whole(problem: Problem, data: st.DataObject) -> None:
    count = len(problem.nodes)
    if count < 2 or outputs(problem) > 1:
        return
    at = data.draw(st.integers(1, count - 1))
    first, second = parted(problem, at)
    ahead = [v for v, node in enumerate(problem.nodes) if v < at or node.kind is Kind.INPUT]
    behind = [v for v in range(count) if v not in set(ahead)]
    whole = memory_profile(problem, [*ahead, *behind])
    halves = [memory_profile(one, one.original_order) for one in (first, second)]
    assert halves[0][: len(ahead)] == whole[: len(ahead)]
    assert halves[1][len(halves[1]) - len(behind) :] == whole[len(ahead) :]
    assert [node.name for node in first.nodes[:-1]] == [problem.nodes[v].name for v in ahead]
    assert [node.name for node in second.nodes[len(second.nodes) - len(behind) :]] == [
        problem.nodes[v].name for v in behind
    ]


@given(problems())
def test_the_halves_take_no_less_than_the_whole(problem: Problem) -> None:
    if len(problem.nodes) < 2 or outputs(problem) > 1 or problem.contention:
        return
    steps = [replay(one, one.original_order).step_us for one in parted(problem, len(problem.nodes) // 2)]
    assert sum(steps) >= replay(problem, problem.original_order).step_us - 1e-6


def test_what_a_node_needs_comes_first() -> None:
    """``wgrad`` needs no gathered weight: the gather, its wait and ``dgrad`` come after it."""
    order, count = needed_first(EXAMPLE, 6)
    assert [EXAMPLE.nodes[v].name for v in order[:count]] == ["w", "x", "mm", "wgrad"]
    assert violation(EXAMPLE, order) is None
    first, second = parted(EXAMPLE.renumbered(order), count)
    assert [node.name for node in first.nodes] == ["w", "x", "mm", "wgrad", "example.given"]
    assert [(node.name, node.kind.value) for node in second.nodes[:4]] == [
        ("w.0", "input"),
        ("mm.3", "input"),
        ("wgrad.5", "input"),
        ("gather", "collective"),
    ]
    assert replay(first, first.original_order).step_us == 80
    assert replay(second, second.original_order).step_us == 40 + 30 + 40


@given(problems(), st.data())
def test_needed_first_is_valid(problem: Problem, data: st.DataObject) -> None:
    last = data.draw(st.integers(0, len(problem.nodes) - 1))
    order, count = needed_first(problem, last)
    assert last in order[:count]
    if outputs(problem) < 2:
        assert violation(problem, order) is None
