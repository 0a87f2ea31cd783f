"""A step that is too long or too short is asked about."""

import pytest

from overlap_sched.cost.plausible import doubt
from overlap_sched.problem import Kind, Node, Problem


@pytest.mark.parametrize(
    ("us", "found"),
    [(3600e6, None), (1.0, None), (0.0, None), (7.2e9, "2.0 hours"), (0.25, "250 ns"), (0.999, "999 ns")],
)
def test_steps_of_odd_lengths_are_asked_about(us: float, found: str | None) -> None:
    problem = Problem("alone", (Node("mm", Kind.COMPUTE, time_us=us),), ())
    expected = (
        None
        if found is None
        else (
            f"the original step takes {found}: are all times in microseconds, sizes in bytes, rates per second? "
            "`overlap-sched explain --costs` lists the longest nodes and where their times come from"
        )
    )
    assert doubt(problem) == expected
