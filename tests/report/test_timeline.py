import pytest

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile
from overlap_sched.problem import EXAMPLE, Problem
from overlap_sched.report.timeline import Span, timeline


def test_the_example_looks_as_drawn() -> None:
    line = timeline(EXAMPLE, EXAMPLE.original_order)
    assert line.step_us == 190
    assert line.compute == (Span(4, 40, 90), Span(5, 90, 120), Span(6, 120, 150))
    assert line.exposed == (Span(3, 0, 40), Span(8, 150, 190))
    assert line.streams == {"fsdp": (Span(2, 0, 40), Span(7, 150, 190))}


def test_the_reordered_example_looks_as_drawn() -> None:
    line = timeline(EXAMPLE, (0, 1, 2, 4, 6, 7, 3, 5, 8, 9))
    assert line.compute == (Span(4, 0, 50), Span(6, 50, 80), Span(5, 80, 110))
    assert line.exposed == (Span(8, 110, 120),)
    assert line.streams == {"fsdp": (Span(2, 0, 40), Span(7, 80, 120))}


def test_sums_are_those_of_the_replay() -> None:
    for order in (EXAMPLE.original_order, (0, 1, 2, 4, 6, 7, 3, 5, 8, 9)):
        line, run = timeline(EXAMPLE, order), replay(EXAMPLE, order)
        assert sum(s.end_us - s.start_us for s in line.exposed) == pytest.approx(run.exposed_us)
        assert line.step_us == run.step_us
        assert [live for _, live in line.memory] == memory_profile(EXAMPLE, order)


def test_groups_without_collectives_have_no_row_and_no_time_has_no_span(odd: Problem) -> None:
    line = timeline(odd, odd.original_order)
    assert dict(line.streams) == {"h": (), "g $1$": ()}
    assert (line.compute, line.exposed, line.step_us) == ((), (), 0.0)
