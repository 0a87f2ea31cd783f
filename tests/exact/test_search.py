"""The exact search against brute force, from the words of the definitions."""

from hypothesis import given, settings

from overlap_sched.problem import Problem
from tests.exact.search import shortest_step
from tests.graphs import problems
from tests.oracle import all_orders, peak_by_definition, step_by_definition

MOST_ORDERS = 3_000


@settings(max_examples=150, deadline=None)
@given(problems(max_steps=6))
def test_no_order_is_shorter_and_one_is_as_short(problem: Problem) -> None:
    measured = []
    for order in all_orders(problem):
        measured.append((max(peak_by_definition(problem, order)), step_by_definition(problem, order)))
        if len(measured) > MOST_ORDERS:
            return
    peaks = sorted({peak for peak, _ in measured})
    for limit in (peaks[0] - 1, peaks[0], peaks[len(peaks) // 2], peaks[-1]):
        steps = [step for peak, step in measured if peak <= limit]
        found = shortest_step(problem, limit)
        if not steps:
            assert found is None
        else:
            assert found is not None
            assert found.step_us == min(steps)
            assert step_by_definition(problem, list(found.order)) == found.step_us
            assert max(peak_by_definition(problem, list(found.order))) <= limit
